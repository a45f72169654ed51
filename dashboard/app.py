"""Entry point of the dashboard: navigation, and the pair bar on top of every page."""

from __future__ import annotations

import gc

import streamlit as st
from PIL import Image

from dashboard import view, widgets
from engine.errors import GapscopeError


@st.cache_resource(show_spinner=False)
def _freeze() -> None:
    """Take the libraries out of the garbage collector's sight: Streamlit collects after every run of this script."""
    gc.collect()
    gc.freeze()


@st.cache_resource(show_spinner=False)
def _icon() -> Image.Image:
    """Two bars of unequal height in the colours of the two sides; drawn here, as nothing is fetched."""
    image = Image.new("RGBA", (32, 32))
    image.paste("#0072B2", (4, 6, 14, 30))
    image.paste("#D55E00", (18, 12, 28, 30))
    return image


@st.cache_resource(show_spinner=False)
def _logo() -> Image.Image:
    """The mark with room to its right, as a logo is scaled by its height."""
    wide = Image.new("RGBA", (64, 32))
    wide.paste(_icon(), (0, 0))
    return wide


def main() -> None:
    """One run of the script."""
    st.set_page_config(
        page_title="gapscope", page_icon=_icon(), layout="wide", initial_sidebar_state=210, menu_items={"about": ABOUT}
    )
    _freeze()
    st.html(STYLE)
    st.logo(_logo(), size="small")
    page = widgets.navigation()
    name = page.url_path or view.DEFAULT_PAGE
    try:
        widgets.open_link(name)
        again = widgets.join_finished()
        widgets.keep_shared(name)
        widgets.pair_bar(name)
        if again:
            st.rerun()
        page.run()
    except GapscopeError as error:
        st.error(str(error))


STYLE = """<style>
.stMainBlockContainer { padding-left: 2.2rem; padding-right: 2.2rem; max-width: 1500px; }
[class*="st-key-strip-"] p { line-height: 1.45; }
@media print {
  [data-testid="stSidebar"], [data-testid="stHeader"], .st-key-pairbar button { display: none; }
  [class*="st-key-chart-"] { break-inside: avoid; }
}
</style>"""
"""Only keys of our own and Streamlit's documented test ids: class names that its releases may change are not used."""

ABOUT = "gapscope: which part of the measured LLM serving path does this replay misrepresent?"

if __name__ == "__main__":
    main()
