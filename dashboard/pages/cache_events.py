from dashboard import widgets

frame = widgets.frame("cache_events")
