from dashboard import widgets

frame = widgets.frame("identity")
