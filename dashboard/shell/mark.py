"""The mark of gapscope, drawn here, as nothing is fetched."""

from __future__ import annotations

import streamlit as st
from PIL import Image


@st.cache_resource(show_spinner=False)
def icon() -> Image.Image:
    """Two bars of unequal height in the colours of the two sides."""
    image = Image.new("RGBA", (32, 32))
    image.paste("#0072B2", (4, 6, 14, 30))
    image.paste("#D55E00", (18, 12, 28, 30))
    return image


@st.cache_resource(show_spinner=False)
def logo() -> Image.Image:
    """The mark with room to its right, as a logo is scaled by its height."""
    wide = Image.new("RGBA", (64, 32))
    wide.paste(icon(), (0, 0))
    return wide
