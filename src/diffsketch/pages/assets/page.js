// Draws the plots when they come near, and makes buttons, axes, tables and the theme work.
"use strict";
(() => {
  const root = document.documentElement;
  const plots = [];
  const PAPER_WIDTH = 640; // pixels, that fit a printed page
  let paper = false;
  const touch = matchMedia("(pointer: coarse)").matches;

  // -- Plots -----------------------------------------------------------------------------------

  function colour(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  function themedAxis(axis) {
    const quiet = { gridcolor: colour("--grid"), linecolor: colour("--line"), color: colour("--muted") };
    return { ...axis, ...quiet, title: { ...axis.title, font: { color: colour("--muted"), size: 13 } } };
  }

  /** Where words stand on an axis: at the logarithm, if it is logarithmic. */
  function place(value, log) {
    return log ? Math.log10(value) : value;
  }

  /** What Plotly is to show now: the figure, with the axis, the scale and the theme in force. */
  function current(plot) {
    const { data: traces, layout } = plot.figures[plot.axis];
    const text = colour("--text");
    const data = traces.map((trace) => ({ ...trace, visible: !plot.hidden.has(trace.legendgroup) }));
    const y = { ...layout.yaxis };
    if (plot.log !== null) {
      y.type = plot.log ? "log" : "linear";
      delete y.dtick; // It was meant for the other scale.
    }
    return {
      data,
      layout: {
        ...layout,
        ...(paper ? { autosize: false, width: PAPER_WIDTH } : { autosize: true }),
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
        hoverlabel: {
          ...layout.hoverlabel,
          bgcolor: colour("--card"),
          bordercolor: colour("--muted"),
          font: { color: text, size: 12 },
        },
        xaxis: themedAxis(layout.xaxis),
        yaxis: themedAxis(y),
        shapes: layout.shapes || [],
        annotations: (layout.annotations || []).map((words, index) => ({
          ...words,
          ...(words.yref === "y" && plot.log !== null ? { y: place(layout.shapes[index].y0, plot.log) } : {}),
          font: { ...words.font, color: colour("--muted") },
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

  function listen(plot) {
    const { figure } = plot;
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
    const figures = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
    const canvas = figure.querySelector(".canvas");
    const plot = { figure, canvas, figures, axis: 0, log: null, hidden: new Set(), drawn: false };
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
