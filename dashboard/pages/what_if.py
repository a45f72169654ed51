from dashboard import widgets

frame = widgets.frame("what_if")
