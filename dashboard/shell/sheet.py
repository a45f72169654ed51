"""The style sheet of every page: what Streamlit's theme cannot say about focus, motion, narrow windows and print.

Only keys of our own, Streamlit's documented test ids and Plotly's public classes are named: the other class names of
Streamlit change with its releases.
"""

from __future__ import annotations

STYLE = """<style>
.stMainBlockContainer { padding-left: 2.2rem; padding-right: 2.2rem; max-width: 1500px; }
[class*="st-key-strip-"] p { line-height: 1.45; }

/* Captions are text like any other: readable, in both themes. */
[data-testid="stCaptionContainer"] { opacity: 1; }
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] p, [data-testid="stCaptionContainer"] li {
  color: light-dark(#5C5C62, #B4B4BA);
}
/* The head of a page leaves the window to its charts. */
.st-key-title h1 { font-size: 1.05rem; font-weight: 600; padding: 0; margin: 0; line-height: 1.2; }
.st-key-pairbar label { min-height: 1.1rem; margin-bottom: 0; }
.st-key-titles p { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
[data-testid="stMultiSelectTagsContainer"] span[title] { font-size: 0.78rem; }
.st-key-printed { display: none; }
.st-key-contents a { color: inherit; text-decoration-color: light-dark(#C4C4CA, #5A5A62); text-underline-offset: 3px; }
.st-key-contents p { line-height: 1.5; }
/* Where a link within the page leads: takes no room, and stops below the header. */
[data-testid="stElementContainer"]:has(> [data-testid="stHtml"] > .anchor) { position: absolute; }
[class*="st-key-chart-"] { position: relative; }
.anchor { scroll-margin-top: 4.6rem; }

/* Where the keyboard is, is seen: also in a chart's own menu, which shows on hover otherwise. */
a:focus-visible, .modebar-btn:focus-visible { outline: 2px solid currentColor !important; outline-offset: 1px; }
.js-plotly-plot .modebar:focus-within { opacity: 1 !important; }
/* Chosen values and main buttons stand on the primary colour, which is light in the dark theme. */
[data-testid="stMultiSelectTagsContainer"] span[title], [data-testid^="stBaseButton-primary"]:not(:disabled),
[data-testid^="stBaseButton-primary"]:not(:disabled) p { color: light-dark(#FFFFFF, #171614); }
button[aria-label="Clear all"] { min-width: 24px; min-height: 24px; }

@media (prefers-reduced-motion: reduce) {
  *, *::before, *::after {
    animation-duration: 0.01ms !important; animation-iteration-count: 1 !important;
    transition-duration: 0.01ms !important; transition-delay: 0s !important; scroll-behavior: auto !important;
  }
}
@media (max-width: 640px) {
  .stMainBlockContainer { padding-left: 0.8rem; padding-right: 0.8rem; }
  [class*="st-key-strip-"] { flex-wrap: wrap; }
  .stMainBlockContainer [role="listitem"] { white-space: normal !important; }
}
@media print {
  @page { size: A4 landscape; margin: 10mm; }
  [data-testid="stSidebar"], [data-testid="stHeader"], [data-testid="stToolbar"], .modebar,
  .stButton, .stDownloadButton, .stPopover, .stFileUploader { display: none !important; }
  .st-key-pairbar { display: none !important; }
  .anchor { scroll-margin-top: 0; }
  .st-key-title h1 { font-size: 1.3rem; }
  .st-key-printed { display: block; }
  .stMainBlockContainer { padding: 0; max-width: none; }
  [class*="st-key-chart-"] { break-inside: avoid; }
  /* Charts and tables keep the pixels of the window: the widest that a page draws fits the paper like this. */
  [data-testid="stPlotlyChart"], [data-testid="stDataFrame"] { zoom: 0.72; }
}
</style>"""
