"use strict";
const scheme = matchMedia("(prefers-color-scheme: dark)");
const charts = [...document.querySelectorAll(".chart")].map((box) => {
  const text = box.querySelector("script").textContent;
  box.querySelector("script").remove();
  return { box, text };
});

// A figure as it was made, with what the theme changes of it. It is read anew each time: plotly.js writes into what it gets.
function figure(text, dark) {
  const found = JSON.parse(text);
  for (const [path, value] of dark ? found.dark : []) {
    let at = found;
    for (const step of path.slice(0, -1)) at = at[step];
    at[path.at(-1)] = value;
  }
  const clear = "rgba(0,0,0,0)";
  return {
    data: found.data,
    layout: {
      ...found.layout,
      autosize: true,
      paper_bgcolor: clear,
      plot_bgcolor: clear,
      font: { family: "system-ui, sans-serif", size: 12, color: dark ? "#e8e8ec" : "#1d1d22" },
    },
  };
}

function draw({ box, text }, dark, width) {
  const { data, layout } = figure(text, dark);
  Plotly.react(box, data, width ? { ...layout, width } : layout, {
    responsive: !width,
    displaylogo: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
    toImageButtonOptions: { filename: "gapscope-" + box.closest("figure").id, scale: 2 },
  });
}

// One chart at a time, so that the page can be read and scrolled meanwhile; a change of the theme begins anew.
let turn = 0;
function drawAll() {
  const own = ++turn;
  const next = (at) => {
    if (own !== turn || at === charts.length) return;
    draw(charts[at], scheme.matches);
    setTimeout(next, 0, at + 1);
  };
  next(0);
}

drawAll();
scheme.addEventListener("change", drawAll);

const closed = [];
addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details:not([open])")) {
    one.open = true;
    closed.push(one);
  }
  turn += 1;
  for (const chart of charts) draw(chart, false, 680);
});
addEventListener("afterprint", () => {
  for (const one of closed.splice(0)) one.open = false;
  drawAll();
});
