// Draws the plots when they come near, and makes buttons, axes, tables and the theme work.
"use strict";
(() => {
  const root = document.documentElement;
  const plots = [];
  const PAPER_WIDTH = 640; // pixels, that fit a printed page
  let paper = false;
  const touch = matchMedia("(pointer: coarse)").matches;

  // -- Figures: from the description of a plot to what Plotly draws -------------------------------

  const PHONE = 46; // characters of a line of hover text
  const CATEGORY = 14; // characters of a label below a bar: several stand side by side

  /** Escapes text so that Plotly shows it as it is: no tags, links, template fields or formulas. */
  function plain(text) {
    const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", $: "&#36;" };
    return text.replace(/[&<>$]/g, (letter) => escapes[letter]).replaceAll("%{", "%&#123;");
  }

  function wrapped(text, width = PHONE) {
    const lines = [""];
    const pieces = text.split(/\s+/).flatMap((word) => word.match(new RegExp(`.{1,${width}}`, "g")) || []);
    for (const piece of pieces) {
      const line = lines[lines.length - 1];
      if (!line) lines[lines.length - 1] = piece;
      else if (line.length + 1 + piece.length <= width) lines[lines.length - 1] = `${line} ${piece}`;
      else lines.push(piece);
    }
    return lines.map(plain).join("<br>");
  }

  /** A number for a reader: four significant digits, thousands apart. */
  function numberText(value) {
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-4 || size >= 1e10)) return value.toExponential(3);
    return value.toLocaleString("en", { maximumSignificantDigits: 4 });
  }

  function valueText(value, axis) {
    if (axis.percent) return `${numberText(100 * value)}%`;
    return numberText(value) + (axis.unit ? ` ${axis.unit}` : "");
  }

  /** A power of ten, or 2 or 5 of one, with a unit: 10 MB, 500 B. */
  function tickText(value, unit) {
    for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
      const step = letter === "k" ? 1e3 : size;
      if (value >= size) return `${Number((value / step).toPrecision(6))} ${letter}${unit}`;
    }
    return `${Number(value.toPrecision(6))} ${unit}`;
  }

  function drawable(value, log) {
    return value === null || (log && value <= 0) ? null : value;
  }

  function axisOf(axis, log, numbers) {
    const sizes = numbers.filter((value) => value).map(Math.abs);
    const least = Math.min(...sizes);
    const most = Math.max(...sizes);
    const tiny = sizes.length > 0 && (log ? least : most) < 1e-3;
    const narrow = log && sizes.length > 0 && most < 30 * least;
    const made = {
      title: { text: wrapped(axis.label), standoff: 8 },
      type: log ? "log" : "linear",
      automargin: true,
      zeroline: false,
      // k, M, G read well; m and µ for small numbers would not.
      exponentformat: tiny ? "power" : "SI",
      hoverformat: tiny || least < 1e-4 ? ".4~g" : ",.4~r",
    };
    if (log) {
      made.dtick = narrow ? "D2" : 1;
      if (narrow) made.tickformat = tiny ? ".3~g" : ",.3~r"; // or 20 would be labelled "2"
      made.minor = { showgrid: false, ticks: "" };
      if (least >= 1 && most >= 1e4) made.tickformat = "~s";
    }
    if (axis.unit) {
      Object.assign(made, { tickformat: ".4~s", hoverformat: ".4~s", ticksuffix: axis.unit });
      if (log && sizes.length) {
        // Plotly leaves out the suffix of all but powers of ten.
        made.tickvals = [];
        for (let power = Math.floor(Math.log10(least)) - 1; power <= Math.ceil(Math.log10(most)) + 1; power++) {
          for (const step of narrow ? [1, 2, 5] : [1]) made.tickvals.push(step * 10 ** power);
        }
        made.ticktext = made.tickvals.map((value) => tickText(value, axis.unit));
        delete made.dtick;
      }
    }
    if (axis.percent) {
      // Enough digits for neighbours to differ, however close they are; zeros are left out.
      Object.assign(made, { tickformat: ".6~%", hoverformat: ".4~p" });
      const [value, ...others] = new Set(numbers.filter((number) => number !== null));
      if (others.length === 0 && value >= 0 && value <= 1) {
        made.range = [Math.max(value - 0.05, -0.004), Math.min(value + 0.05, 1.004)]; // or up to 200%
      }
    }
    return made;
  }

  /** The traces of a series: its line, points or bars, its spread, and the cross at an early end. */
  function tracesOf(spec, series, axisIndex, yLog) {
    const { style } = spec;
    const axis = spec.axes[axisIndex];
    const x = series.x[axisIndex].map((value) => drawable(value, axis.log));
    const y = series.y.map((value) => drawable(value, yLog));
    const steps = series.kind === "steps";
    const spread = series.low.length > 0 && !steps;
    const color = series.colour;
    const faint = color + Math.round(255 * style.faint).toString(16);
    const dash = series.dashed ? style.dash.map((pixels) => `${pixels}px`).join(",") : "solid";
    const line = { color, width: style.width, dash };
    const heading = `<b>${wrapped(series.name)}</b>`;
    const hover = [
      heading,
      `${wrapped(axis.label)}: ${steps ? "%{customdata}" : "%{x}"}`,
      `${wrapped(spec.y.label)}: %{y}${spread ? "%{customdata}" : ""}`,
      wrapped(series.meaning),
      series.note && `<i>${wrapped(series.note)}</i>`,
    ];
    const main = { type: "scatter", x, y, hovertemplate: `${hover.filter(Boolean).join("<br>")}<extra></extra>` };
    const ends = series.low.map((low, index) => [low, series.high[index]]);
    if (spread) {
      main.customdata = ends.map((pair) =>
        pair.includes(null) ? "" : ` (${pair.map((end) => valueText(end, spec.y)).join(" to ")})`,
      );
    }
    if (series.kind === "bars") {
      main.type = "bar";
      main.marker = { color, line: { color, width: 1 }, opacity: 0.9 };
      if (series.dashed) main.marker.pattern = { shape: "/", fgcolor: color, bgcolor: "rgba(0,0,0,0)" };
    } else if (steps) {
      // A histogram: each bin keeps its height up to the next edge.
      const bins = x.slice(1).map((right, index) => `${valueText(x[index], axis)} to ${valueText(right, axis)}`);
      main.mode = "lines";
      main.y = [...y, ...y.slice(-1)];
      main.customdata = [...bins, ...bins.slice(-1)];
      main.line = { ...line, shape: "hv" };
      main.fill = yLog || series.dashed ? "none" : "tozeroy";
      main.fillcolor = faint;
    } else {
      const points = series.kind === "points";
      const hollow = points && series.dashed;
      main.mode = points ? "markers" : series.symbol ? "lines+markers" : "lines";
      main.line = line;
      if (series.symbol) {
        main.marker = {
          color,
          symbol: series.symbol + (hollow ? "-open" : ""),
          size: points ? style.point : style.symbol,
          line: hollow ? { width: 2, color } : {},
        };
      }
    }
    const traces = [main];
    // On a logarithmic axis an end at 0 or below is half the least number drawn.
    const every = spec.series.flatMap((each) => [...each.y, ...each.low, ...each.high]);
    const floor = yLog ? 0.5 * Math.min(...every.filter((value) => value !== null && value > 0)) : -Infinity;
    const low = ends.map(([end]) => (end === null ? null : Math.max(end, floor)));
    const high = ends.map(([, end]) => drawable(end, yLog));
    if (spread && series.kind === "band") {
      const shade = { type: "scatter", mode: "lines", hoverinfo: "skip", x: [], y: [] };
      Object.assign(shade, { line: { width: 0, color }, fill: "toself", fillcolor: faint });
      // Around each stretch without gaps: along its upper side, and back on the lower.
      let stretch = [];
      for (let index = 0; index <= x.length; index++) {
        if (index < x.length && ![x[index], low[index], high[index]].includes(null)) stretch.push(index);
        else if (stretch.length) {
          const back = [...stretch].reverse();
          shade.x.push(...stretch.map((at) => x[at]), ...back.map((at) => x[at]), null);
          shade.y.push(...stretch.map((at) => high[at]), ...back.map((at) => low[at]), null);
          stretch = [];
        }
      }
      traces.unshift(shade);
    } else if (spread) {
      const above = (one, other) => (one === null || other === null ? 0 : one - other);
      main.error_y = {
        type: "data",
        symmetric: false,
        array: high.map((end, index) => above(end, series.y[index])),
        arrayminus: low.map((end, index) => above(series.y[index], end)),
        color: series.kind === "bars" ? spec.neutral : color,
        thickness: 1.5,
        width: 4,
      };
    }
    const last = y.findLastIndex((value, index) => value !== null && x[index] !== null);
    if (series.ended && last >= 0) {
      traces.push({
        type: "scatter",
        mode: "markers",
        x: [x[last]],
        y: [y[last]],
        marker: { symbol: "x-thin", size: 12, line: { width: 3, color }, color },
        hovertemplate: `${heading}<br>ends here: ${wrapped(series.ended)}<extra></extra>`,
      });
    }
    return traces;
  }

  /** Lines across a plot and their labels; those on x are of the first axis. */
  function marksOf(spec, axisIndex, yLog) {
    const first = spec.axes[0];
    const scale = (value, log) => (log ? Math.log10(value) : value);
    const drawn = spec.series
      .flatMap((series) => series.x[0])
      .filter((value) => drawable(value, first.log) !== null)
      .map((value) => scale(value, first.log));
    const shapes = [];
    const annotations = [];
    spec.marks.forEach((mark, index) => {
      const upright = mark.axis === "x";
      const log = upright ? first.log : yLog;
      const visible = !(upright && axisIndex > 0) && !(log && mark.value <= 0);
      const [along, across] = upright ? ["y", "x"] : ["x", "y"];
      shapes.push({
        type: "line",
        [`${along}ref`]: "paper",
        [`${along}0`]: 0,
        [`${along}1`]: 1,
        [`${across}ref`]: across,
        [`${across}0`]: mark.value,
        [`${across}1`]: mark.value,
        visible,
        line: { color: spec.neutral, width: 1.6, dash: "dot" },
      });
      // Text, unlike lines, stands at the logarithm where an axis is logarithmic.
      const value = log && mark.value > 0 ? Math.log10(mark.value) : mark.value;
      const label = { text: wrapped(mark.label), visible, showarrow: false, borderpad: 1, [across]: value };
      Object.assign(label, { [`${along}ref`]: "paper", [`${across}ref`]: across });
      if (upright) {
        // At the top, right of the line while there is space; one below the other.
        const [least, most] = [Math.min(...drawn), Math.max(...drawn)];
        const left = value > least + 0.7 * (most - least);
        Object.assign(label, { xanchor: left ? "right" : "left", xshift: left ? -3 : 3 });
        Object.assign(label, { y: 1 - 0.09 * (index % 5), yanchor: "top" });
      } else {
        // Right and left by turns, as neighbours would else cover each other.
        Object.assign(label, { x: 1 - (index % 2), xanchor: index % 2 ? "left" : "right", yanchor: "bottom" });
      }
      annotations.push(label);
    });
    return { shapes, annotations };
  }

  /**
   * What Plotly draws of a plot over one of its x axes. All traces of a series have its group, so
   * that its line, spread and cross come and go together.
   */
  function figureOf(spec, axisIndex, yLog) {
    const axis = spec.axes[axisIndex];
    const data = spec.series.flatMap((series, index) =>
      tracesOf(spec, series, axisIndex, yLog).map((trace) => ({
        ...trace,
        legendgroup: `series-${index}`,
        name: plain(series.name),
      })),
    );
    const xaxis = axisOf(axis, axis.log, spec.series.flatMap((series) => series.x[axisIndex]));
    if (spec.categories.length && axisIndex === 0) {
      xaxis.tickvals = spec.categories.map((_, index) => index);
      xaxis.ticktext = spec.categories.map((label) => wrapped(label, CATEGORY));
      xaxis.ticklabeloverflow = "allow"; // or the last is left out where it is turned
    }
    const yaxis = axisOf(spec.y, yLog, spec.series.flatMap((series) => series.y));
    const layout = { showlegend: false, hovermode: "closest", barmode: "group", bargap: 0.25, xaxis, yaxis };
    Object.assign(layout, marksOf(spec, axisIndex, yLog), { margin: { l: 8, r: 12, t: 12, b: 8 } });
    return { data, layout };
  }

  // -- Plots -----------------------------------------------------------------------------------

  function colour(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  function themedAxis(axis) {
    const quiet = { gridcolor: colour("--grid"), linecolor: colour("--line"), color: colour("--muted") };
    return { ...axis, ...quiet, title: { ...axis.title, font: { color: colour("--muted"), size: 13 } } };
  }

  /** What Plotly is to show now: the figure, with the axis, the scale and the theme in force. */
  function current(plot) {
    const { data: traces, layout } = figureOf(plot.spec, plot.axis, plot.log);
    const text = colour("--text");
    const data = traces.map((trace) => ({ ...trace, visible: !plot.hidden.has(trace.legendgroup) }));
    return {
      data,
      layout: {
        ...layout,
        ...(paper ? { autosize: false, width: PAPER_WIDTH } : { autosize: true }),
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
        hoverlabel: {
          align: "left",
          namelength: -1,
          bgcolor: colour("--card"),
          bordercolor: colour("--muted"),
          font: { color: text, size: 12 },
        },
        xaxis: themedAxis(layout.xaxis),
        yaxis: themedAxis(layout.yaxis),
        annotations: layout.annotations.map((label) => ({
          ...label,
          font: { size: 11, color: colour("--muted") },
          bgcolor: colour("--veil"),
        })),
        // A finger that moves over a plot scrolls the page.
        dragmode: touch ? false : "zoom",
        // Zoom is kept while series come and go, and let go when an axis changes.
        uirevision: `${plot.axis}/${plot.log}`,
      },
    };
  }

  function draw(plot) {
    const { data, layout } = current(plot);
    plot.drawn = true;
    return Plotly.react(plot.canvas, data, layout, {
      displayModeBar: false,
      responsive: true,
      showTips: false,
      doubleClick: "reset+autosize",
    });
  }

  function redraw(plot) {
    if (plot.drawn) draw(plot);
  }

  function reset(plot) {
    if (plot.drawn) Plotly.relayout(plot.canvas, { "xaxis.autorange": true, "yaxis.autorange": true });
  }

  /** Change both axes' ranges: by a factor around their middle, and by a share of their length. */
  function move(plot, factor, right, up) {
    if (!plot.drawn) return;
    const change = {};
    for (const [name, share] of [["xaxis", right], ["yaxis", up]]) {
      const [low, high] = plot.canvas._fullLayout[name].range.map(Number);
      const half = ((high - low) / 2) * factor;
      const middle = (low + high) / 2 + share * (high - low);
      change[`${name}.range`] = [middle - half, middle + half];
    }
    Plotly.relayout(plot.canvas, change);
  }

  const keys = {
    "+": (plot) => move(plot, 0.7, 0, 0),
    "=": (plot) => move(plot, 0.7, 0, 0),
    "-": (plot) => move(plot, 1 / 0.7, 0, 0),
    ArrowLeft: (plot) => move(plot, 1, -0.15, 0),
    ArrowRight: (plot) => move(plot, 1, 0.15, 0),
    ArrowUp: (plot) => move(plot, 1, 0, 0.15),
    ArrowDown: (plot) => move(plot, 1, 0, -0.15),
    0: (plot) => reset(plot),
  };

  /** Shows or hides a name in all plots that share its legend. */
  function toggle(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const place of button.dataset.series.split(" ")) {
      const [name, group] = place.split("/");
      const plot = plots.find((each) => each.figure.id === `exhibit-${name}`);
      if (shown) plot.hidden.delete(group);
      else plot.hidden.add(group);
      redraw(plot);
    }
  }

  /** Whether both scales of y show everything, and something else: not shares, over a range. */
  function logIsSensible({ series, marks, y }) {
    if (series.some((each) => ["bars", "steps"].includes(each.kind))) return false;
    const numbers = series.flatMap((each) => [...each.y, ...each.low, ...each.high]);
    const drawn = [...numbers.filter((value) => value !== null)];
    drawn.push(...marks.filter((mark) => mark.axis === "y").map((mark) => mark.value));
    const least = Math.min(...drawn);
    return least > 0 && least < Infinity && (y.log || (!y.percent && Math.max(...drawn) >= 3 * least));
  }

  function listen(plot) {
    const { figure } = plot;
    if (!logIsSensible(plot.spec)) figure.querySelector("[data-action=log]").remove();
    for (const select of figure.querySelectorAll(".axes")) {
      select.addEventListener("change", () => {
        plot.axis = Number(select.value);
        redraw(plot);
      });
    }
    const actions = {
      in: () => move(plot, 0.7, 0, 0),
      out: () => move(plot, 1 / 0.7, 0, 0),
      reset: () => reset(plot),
      save: () =>
        Plotly.downloadImage(
          // Text is light on a dark page, and so needs its background.
          { data: plot.canvas.data, layout: { ...plot.canvas.layout, paper_bgcolor: colour("--card") } },
          { format: "png", scale: 2, width: plot.canvas.clientWidth, height: plot.canvas.clientHeight,
            filename: figure.id.replace("exhibit-", "") },
        ),
      log: (button) => {
        plot.log = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(plot.log));
        redraw(plot);
      },
    };
    for (const button of figure.querySelectorAll("[data-action]")) {
      button.addEventListener("click", () => actions[button.dataset.action](button));
    }
    plot.canvas.parentElement.addEventListener("keydown", (event) => {
      const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
      if (!action) return;
      event.preventDefault();
      action(plot);
    });
  }

  for (const figure of document.querySelectorAll("figure.plot")) {
    const spec = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
    const canvas = figure.querySelector(".canvas");
    const plot = { figure, canvas, spec, axis: 0, log: spec.y.log, hidden: new Set(), drawn: false };
    // A browser may restore what was chosen before the page was loaded again.
    for (const select of figure.querySelectorAll(".axes")) plot.axis = Number(select.value);
    plots.push(plot);
    listen(plot);
  }

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => toggle(button));
  }

  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((each) => each.isIntersecting)) {
        near.unobserve(entry.target);
        const plot = plots.find((each) => each.canvas === entry.target);
        if (!plot.drawn) draw(plot);
      }
    },
    { rootMargin: "500px" },
  );
  for (const plot of plots) near.observe(plot.canvas);

  // -- Theme -----------------------------------------------------------------------------------

  function show(theme) {
    root.dataset.theme = theme;
    plots.forEach(redraw);
  }

  document.getElementById("theme").addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("diffsketch-theme", theme);
    } catch {
      // It is then forgotten with the page.
    }
    show(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    let kept = null;
    try {
      kept = localStorage.getItem("diffsketch-theme");
    } catch {
      // As above.
    }
    if (kept === null) show(event.matches ? "dark" : "light");
  });

  // -- Printing: on paper everything is there, and light ----------------------------------------

  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    paper = true;
    plots.forEach(draw);
    for (const fold of document.querySelectorAll("details:not([open])")) {
      fold.open = true;
      fold.dataset.folded = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const fold of document.querySelectorAll("details[data-folded]")) {
      fold.open = false;
      delete fold.dataset.folded;
    }
    paper = false;
    show(before);
  });

  // -- Tables ----------------------------------------------------------------------------------

  function sort(table, column, heading) {
    const descending = heading.getAttribute("aria-sort") === "ascending";
    const body = table.tBodies[0];
    const value = (row) => {
      const { sort: key, number } = row.cells[column].dataset;
      return number === undefined ? key : Number(number);
    };
    const compare = (a, b) => {
      // What there is not comes last, either way.
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      const order =
        typeof a === "number" && typeof b === "number"
          ? a - b
          : String(a).localeCompare(String(b), "en", { numeric: true });
      return descending ? -order : order;
    };
    const rows = [...body.rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => compare(a, b));
    body.append(...rows.map(([, row]) => row));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  }

  for (const table of document.querySelectorAll("table")) {
    for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
      heading.querySelector("button").addEventListener("click", () => sort(table, column, heading));
    }
  }

  // -- The section that is being read, in the list of contents ----------------------------------

  const links = new Map(
    [...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]),
  );
  const reading = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const link = links.get(entry.target.id);
        if (!link) continue;
        if (!entry.isIntersecting) {
          link.removeAttribute("aria-current");
          continue;
        }
        link.setAttribute("aria-current", "true");
        // In a strip or a column that is too short for all, the one that is read stays in view.
        const list = link.closest("nav");
        list.scrollTo({
          left: link.offsetLeft - list.clientWidth / 2,
          top: link.offsetTop - list.clientHeight / 2,
        });
      }
    },
    { rootMargin: "-25% 0px -65% 0px" },
  );
  for (const section of document.querySelectorAll("main > section")) reading.observe(section);
})();
