"""How to read each chart and table: a sentence or two, shown in its panel *How* and behind its title.

A chart that exists once per run has the name of the run's role at its end; its key ends with ``*`` here.
"""

from __future__ import annotations

READING: dict[tuple[str, str], str] = {
    ("verdict", "gaps"): (
        "One bar per candidate and number; the grey band is where the measured side itself may lie when nothing "
        "changes. A bar that ends inside its band shows no difference."
    ),
    ("verdict", "parts"): (
        "Read in the order of a request's life: the parts add up to the gap of the mean. Parts of opposite sign "
        "hide each other, so a small gap with large parts is no agreement."
    ),
    ("verdict", "parts-table"): "The same parts as numbers; they sum to the gap of the mean.",
    ("verdict", "gates"): "A row per gate of your contract: the limit, what was found, and whether it holds.",
    ("verdict", "numbers"): (
        "One row per number. Look at the state first: ~ is inside the noise, a sign with a word says in which "
        "direction a candidate is outside it."
    ),
    ("verdict", "consistency"): (
        "Requests in flight are the request rate times the mean latency. Where that product and what was observed "
        "part, requests at the ends of the window or another population are in the way."
    ),
    ("identity", "identity"): (
        "One row per field, one column per run; a cell that differs from the first run begins with 'differs'. "
        "Regime fields decide what a pass costs, so a difference there comes before any gap."
    ),
    ("identity", "unknown"): (
        "What a side did not record. It is neither a match nor a mismatch: look at the other side."
    ),
    ("identity", "equal"): "Fields that all sides recorded with the same value; here to be looked up.",
    ("identity", "memory"): (
        "Compare component by component: equal totals can hide a larger KV pool beside smaller weights."
    ),
    ("identity", "axes-*"): (
        "Each axis of the regime in which the timing was measured, beside that of its target. An axis that differs "
        "or is unknown limits what the timing may be used for."
    ),
    ("identity", "parts-*"): "What of the timing was accepted for this run and what was refused, with the reason.",
    ("identity", "changes-*"): (
        "What was done to measured times before they were used. A factor far from 1 carries the result."
    ),
    ("source", "beside"): (
        "The tool's figure, ours from its rows, and the difference (theirs minus ours) with what explains it."
    ),
    ("source", "definitions"): "What the numbers of these rows mean, and where each rule was read.",
    ("source", "over-time"): "What was sampled of server or GPUs over the run; a step at a phase border is the load.",
    ("source", "others"): "Every other figure that the tool left, as it stands in its files.",
    ("source", "files"): "The files that the run was made from, with their digests.",
    ("cohort", "ledger"): (
        "Each phase is balanced: attempted is the sum of the classes beside it. Sides that differ here did not do "
        "the same work, and their latencies are of different requests."
    ),
    ("cohort", "not-ok"): "One row per request that did not simply succeed, with what its tool said of it.",
    ("cohort", "sizes"): (
        "Rates in the chosen window and requests in flight, with gap and noise. A rate counts what the window counts."
    ),
    ("cohort", "in-flight"): (
        "Requests in flight, dispatches and completions on one time axis. Where the sides part, the load begins to "
        "differ."
    ),
    ("cohort", "lanes"): (
        "A row per lane, a bar per request from dispatch to end; gaps between bars are think time. Longer bars "
        "with the same gaps mean slower requests, not fewer."
    ),
    ("cohort", "one-sided-*"): (
        "Source-turns that succeeded on one side and not on the other. Many of them mean that the two means are "
        "about different requests."
    ),
    ("percentiles", "curve"): (
        "ECDF and tail: the share of requests at or below (above) a value; a curve further right is slower. "
        "Quantile-quantile: points on the diagonal mean equal distributions."
    ),
    ("percentiles", "limits"): "The share of values within each limit, measured and on every candidate.",
    ("percentiles", "percentiles"): (
        "The same percentile of each side with its gap; ~ is inside the noise of the measured side."
    ),
    ("percentiles", "by"): (
        "Median and p90 of the metric in each bucket of the property. Sides that agree in every bucket and differ "
        "in total had another mix of requests."
    ),
    ("percentiles", "length-error"): (
        "Each cell is the gap of source-turns with these lengths: blue is lower, orange higher, with the sign in "
        "the cell. One row or column of one colour points to prompts or to outputs."
    ),
    ("percentiles", "length-turns"): (
        "The source-turns of the cell that was clicked, both sides of each; select one for its whole life."
    ),
    ("percentiles", "tail"): (
        "The part of the gap of the mean that the largest requests make. Where few requests make most of it, the "
        "gap is a tail and no level."
    ),
    ("percentiles", "slowest"): (
        "The largest values of each side with their place in the trace, queue time and reuse; select a row to see "
        "what happened to it."
    ),
    ("repeats", "run-to-run"): (
        "How far repeats of the measured run lie from it, number by number, with the replay beside them. A replay "
        "that lies no further than the repeats cannot be told from one."
    ),
    ("repeats", "repeat-*"): "Run and repeat, number by number. This difference is what nothing changed looks like.",
    ("repeats", "standing-*"): "Where the candidate stands among the repeats and in the bootstrap of the measured run.",
    ("repeats", "near"): (
        "Runs that would be repeats but for these fields: make the fields equal, or read them as another experiment."
    ),
    ("repeats", "history"): (
        "One mark per run of the same identity over the time of writing, with its bootstrap. Orange is out of "
        "line: something changed that no field tells."
    ),
    ("tools", "outcomes"): (
        "Requests of each tool by outcome class. Latencies of tools are comparable only over the same classes."
    ),
    ("tools", "outcome-words"): "The same classes in each tool's own words, with its own count of successes.",
    ("tools", "definitions"): (
        "What the numbers of each run mean. A rule that differs explains a gap before the server does."
    ),
    ("tools", "numbers"): (
        "The same rule applied to the rows of each run; 'not comparable' says which quantity is another one."
    ),
    ("tools", "rates"): "Rates of each run over each window. Windows that include the drain give lower rates.",
    ("tools", "distribution"): "The share of requests at or below a value, per tool; a curve to the right is slower.",
    ("tools", "own"): "What the tool printed beside what its rows give by our rule, and what explains the difference.",
    ("report", "claims"): (
        "The bounded claim on each candidate as the report will begin with it. Read it before any number."
    ),
    (
        "report",
        "gates",
    ): "A row per gate of your contract, as the report holds it: the limit, what was found, and whether it holds.",
    ("report", "sections"): "A row per chart and table of the report, with the rows it holds, or why one is empty.",
    ("passes", "classes"): (
        "How many passes of each class there were and how much time they took. A side with as many passes and more "
        "time has longer passes; one with more passes has another batching."
    ),
    ("passes", "gap"): (
        "Each class's part of the gap in pass time, split into more or fewer passes, longer or shorter ones at "
        "equal geometry, and another geometry. Only the second is an error of the timing."
    ),
    ("passes", "geometry"): (
        "Each dot is a cell of equal geometry; its colour says how much longer or shorter the replay's mean pass "
        "is, its size how much time the cell holds. A pattern along an axis is a wrong slope, one colour "
        "everywhere a wrong level. Click a cell for its passes."
    ),
    ("passes", "cell"): "The passes of the cell that was clicked, and who was in them.",
    ("passes", "durations"): (
        "Marks are measured passes, lines each replay's timing at the same geometry. Where the line leaves the "
        "marks, the timing is off."
    ),
    ("passes", "drift"): (
        "Measured passes at the price of each replay, over time. A level that moves between phases is the machine, "
        "not a geometry."
    ),
    ("passes", "timeline"): (
        "Tokens of each pass by kind, a panel per side; bars are as wide as passes last, and means of bins in a "
        "long window."
    ),
    ("passes", "ranks"): "Work, time and waiting of each rank; a rank that is often the slowest holds the others up.",
    ("passes", "spread"): "How far the ranks of one step are apart over time: the time that the faster ones wait.",
    ("timing", "decode"): (
        "Measured passes as dots, sources as lines along KV per request. Compare where lines and dots overlap."
    ),
    ("timing", "prompts"): "Measured passes with prompts as dots, each source's median of the same passes as a line.",
    ("timing", "errors"): (
        "Errors on the passes that every source covers. WAPE weighs long passes more; the error of the total is signed."
    ),
    ("timing", "skew"): (
        "What the best source leaves unexplained, against the spread of KV lengths. A slope means that uneven "
        "batches cost time."
    ),
    ("timing", "holdout-cells-*"): "The hold-out error of each cell. Cells with few passes are uncertain.",
    ("timing", "holdout-*"): "How far the model is off on passes it was not fitted on, by class: its honest error.",
    ("timing", "kept"): "Anchors and tables of the store, and why each does or does not apply to this run.",
    ("timing", "axes"): "Each axis of the anchor's regime beside the run's. One that differs refuses the anchor.",
    ("coverage", "shares-*"): (
        "How the pass times were answered: exact and interpolated rest on measurement, the others do not."
    ),
    ("coverage", "domain-*"): (
        "Crosses were measured, marks were asked. Large marks far from crosses are modelled time that rests on "
        "nothing measured."
    ),
    ("coverage", "cells-*"): (
        "What share of queries and modelled time rests on each cell, most first: an error in the first rows "
        "matters most."
    ),
    ("coverage", "ranks-*"): "The same shares for each worker and rank.",
    ("coverage", "sources-*"): "Which source gave each answer, by passes and by time.",
    ("coverage", "outside-*"): "Queries from outside the measured domain: measure these next.",
    ("coverage", "touched-by-*"): (
        "How many requests took part in passes from outside the domain, by resolution. One request counts once per "
        "resolution."
    ),
    ("coverage", "touched-*"): "Requests that took part in passes from outside the domain, most time in them first.",
    ("cache_events", "hit-ratio"): (
        "Reused over prompt tokens, over time and by turn of the conversation. A side that reuses less computes more."
    ),
    ("cache_events", "numbers"): (
        "Reuse, preemptions and latency of each side in one table: reuse that falls with latency that rises belong "
        "together."
    ),
    ("cache_events", "reuse-*"): (
        "Each shared source-turn by the tokens reused on either side, and a histogram of the change. Off the "
        "diagonal, one side had lost or never stored its blocks."
    ),
    ("cache_events", "recompute"): (
        "Above, what was computed again though it had been stored, and what was reused; below, the same by turn "
        "with preemptions and TTFT beside it."
    ),
    ("cache_events", "recompute-totals"): (
        "What was computed and reused in the whole recording, by what it is to the run."
    ),
    ("cache_events", "events"): (
        "Blocks per second that were hit, stored and evicted, and preemptions. Evictions that follow stores "
        "closely are a pool under pressure."
    ),
    ("cache_events", "pool"): (
        "Blocks that requests refer to, contents that are held, and blocks nobody refers to. A pool that never "
        "fills has no reason to evict."
    ),
    ("cache_events", "links"): (
        "How many blocks of events were joined to a pass and a request, by rule; the rest stays unidentified."
    ),
    ("cache_events", "history"): (
        "What happened to each block of the conversation's prompts over time, a panel per side: stored, reused, "
        "evicted. Click a mark for its request."
    ),
    ("cache_events", "reasons"): (
        "What became of the blocks that one side could not reuse: evicted before, never stored, or computed anyway."
    ),
    ("cache_events", "lives"): (
        "The same life, copy by copy: who stored a block, who reused it, who evicted it and after how long."
    ),
    ("ladder", "rungs"): (
        "Each rung takes one layer more from the measurement. A rung that could not be built says why."
    ),
    ("ladder", "steps"): (
        "From the prediction to the measurement, step by step: the longest step outside the noise names the layer."
    ),
    ("ladder", "heat"): (
        "Every step of every number as a share of its measured value; hatched ones are inside the noise. Click a "
        "row for its steps."
    ),
    ("ladder", "parity"): "The share of passes whose batch equals the recorded one, and the first that differs.",
    ("ladder", "batches"): "Both batches of one pass, request by request: who is in one and not in the other.",
    ("ladder", "queues"): "Both waiting queues after that pass, in order.",
    ("ladder", "divergences"): "Passes whose batch differs, and what explains each. Choose one for both batches.",
    ("alignment", "rungs"): "From the bottom: what stands above a rung that fails is not to be read yet.",
    ("alignment", "checks"): (
        "Each check of the rung with what it allows: the tolerance, or the noise where that is more."
    ),
    ("alignment", "offs"): "How far each check is off, over what is allowed. What reaches beyond its allowance fails.",
    ("boundaries", "stages"): (
        "Stacked mean time in each stage. The stage that differs between sides holds the missing time."
    ),
    ("boundaries", "stage-rows"): "The same stages as numbers, in the mean and in the tail.",
    ("boundaries", "split"): (
        "The same stages by a property of the request: a stage that grows on one side only depends on it."
    ),
    ("boundaries", "turns-*"): "The shared source-turns that differ most, split by layer; select one for its life.",
    ("request", "turns"): "Source-turns by how much they differ; select one to look at it.",
    ("request", "timeline"): (
        "A row per side over the time since dispatch, with the batches it was in below. Look for the first moment "
        "at which the rows part."
    ),
    ("request", "boundaries"): "The same moments in ms from dispatch, with the noise where a repeat has the same turn.",
    ("request", "facts"): "Status, lengths, reuse, preemptions and lane on each side.",
    ("request", "tokens"): (
        "Output tokens that the client had received, over the time since dispatch; a flat piece is a wait."
    ),
    ("request", "neighbours"): (
        "Who shared its passes on either side. Neighbours on one side only make it wait there only."
    ),
    ("request", "blocks"): (
        "Each full block of its prompt as a piece of a bar: hit, evicted before, never stored, or held and "
        "computed anyway."
    ),
    ("what_if", "effect"): (
        "Each candidate beside the measured run. What a changed knob did is the difference between two candidates."
    ),
    ("what_if", "contract"): "Whether each candidate keeps the acceptance contract, gate by gate.",
    ("sweep", "curve"): (
        "The number at each value of the knob; the band is the noise of the measured run, open marks fail the "
        "contract. Click a mark to make its run a candidate."
    ),
    ("sweep", "grid"): (
        "The number at each pair of values; a cross fails the contract. Click a cell to make its run a candidate."
    ),
    ("sweep", "pareto"): (
        "Points on the front are bettered by none in both throughput and latency; every other point is worse in "
        "one and no better in the other."
    ),
    ("sweep", "points"): "Every point with its run and numbers; a point without a run was not played, and says why.",
    ("sensitivity", "tornado"): (
        "The change of the number per step of each knob, largest first. A bar inside the grey noise cannot be told "
        "from none; the dotted line is the change that closes the gap."
    ),
    ("sensitivity", "steps"): "Each step with its run, its effect, and what becomes of the gap.",
}
"""(page, key of the chart) -> how to read it."""


def reading(page: str, key: str) -> str:
    """How to read a chart of a page; empty where nobody said."""
    if found := READING.get((page, key)):
        return found
    starts = [name for where, name in READING if where == page and name.endswith("*") and key.startswith(name[:-1])]
    return READING[page, max(starts, key=len)] if starts else ""
