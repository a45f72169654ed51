from dashboard import widgets

frame = widgets.frame("verdict")
