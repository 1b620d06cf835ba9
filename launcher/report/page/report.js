"use strict";
/* Draws the report from the JSON in the page. Everything that comes from a trace reaches the page as text, never as HTML. */
(() => {
  const root = document.documentElement;
  addEventListener("error", (event) => { root.dataset.error = event.message; });
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = read("data"), totals = read("totals");
  const page = document.getElementById("page");

  /* ---- light and dark: as the system, until the reader chooses; paper is light ---- */
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const paint = () => { root.dataset.theme = chosen || (system.matches ? "dark" : "light"); };
  system.addEventListener("change", paint);
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; });
  addEventListener("afterprint", paint);
  paint();

  /* ---- elements ---- */
  const put = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    for (const child of [children].flat()) if (child !== null && child !== undefined) node.append(child);
    return node;
  };
  const el = (tag, attributes, children) => put(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, children) => put(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  /* ---- figures ---- */
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 1023.95 && unit + 1 < units.length) { value /= 1024; unit++; }
    return (unit === 0 ? value.toFixed(0) : value.toFixed(value < 99.95 ? 1 : 0)) + " " + units[unit];
  };
  const seconds = (value) => {
    if (value === 0) return "0";
    if (value < 1e-6) return (value * 1e9).toFixed(0) + " ns";
    if (value < 1e-3) return (value * 1e6).toFixed(1) + " µs";
    if (value < 1) return (value * 1e3).toFixed(1) + " ms";
    if (value < 120) return value.toFixed(2) + " s";
    if (value < 7200) return Math.floor(value / 60) + " min " + Math.floor(value % 60) + " s";
    return Math.floor(value / 3600) + " h " + Math.floor(value / 60) % 60 + " min";
  };
  const round = (figure) => figure.replace(/\.0+(?= )/, "");
  const count = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const rate = (value) => (value / 1e9 >= 0.1 ? (value / 1e9).toFixed(2) + " GB/s" : (value / 1e6).toFixed(1) + " MB/s");
  const share = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(part > 0 && part / whole < 0.1 ? 1 : 0) + "%" : "0%");
  const plural = (number, word) => count(number) + " " + word + (number === 1 ? "" : "s");
  const who = (rank) => (rank === null ? "rank ?" : "rank " + rank);
  const ticks = (most, wanted, binary) => {
    if (!(most > 0)) return [0];
    const base = binary ? Math.pow(1024, Math.floor(Math.log(most) / Math.log(1024))) : 1;
    const raw = most / base / wanted, power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw) * base;
    const found = [];
    for (let value = 0; value <= most * 1.0001; value += step) found.push(value);
    return found;
  };
  const symbol = (name) => {
    if (!name.startsWith("_ZN")) return name;
    const parts = [];
    let at = 3;
    while (/[KVr]/.test(name[at] || "")) at++;
    for (let match; (match = /^[1-9]\d*/.exec(name.slice(at))); ) {
      at += match[0].length;
      parts.push(name.substr(at, +match[0]));
      at += +match[0];
    }
    return parts.length ? parts.join("::") : name;
  };

  /* ---- what is shown on hover ---- */
  const tip = el("div", { class: "tip", role: "status" });
  document.body.append(tip);
  const showTip = (event, title, rows) => {
    tip.replaceChildren(el("b", {}, title), ...rows.map(([label, value, color]) => el("div", {}, [
      el("span", {}, [color ? el("i", { class: "swatch", style: "background:" + color }) : null, label]), el("span", {}, value)])));
    tip.classList.add("on");
    const box = tip.getBoundingClientRect(), gap = 16;
    const x = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + gap, innerHeight - box.height - 6)) + "px";
  };
  const hideTip = () => tip.classList.remove("on");

  const themeButton = () => el("button", { type: "button", class: "theme", onclick: () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    paint();
  } }, "light / dark");

  const section = (title, about) => {
    page.append(el("h2", {}, title));
    if (about) page.append(el("p", {}, about));
    return page;
  };

  /* columns: [heading, value of a row, {left, name, bar}] */
  const table = (columns, rows, where) => {
    const body = rows.map((row) => el("tr", {}, columns.map(([, value, options = {}]) => {
      const shown = value(row);
      const missing = shown === null || shown === "-";
      const cell = el("td", { class: [options.left ? "left" : "", options.name ? "name mono" : "", missing ? "none" : ""].join(" ").trim() || null },
                      missing ? "–" : shown);
      if (options.bar) {
        const [part, late] = options.bar(row);
        cell.append(el("span", { class: "bar" }, [
          el("i", { style: "width:" + (100 * part).toFixed(1) + "%" }),
          late > 0 ? el("i", { class: "late", style: "left:" + (100 * (part - part * late)).toFixed(1) + "%;width:" + (100 * part * late).toFixed(1) + "%" }) : null]));
      }
      if (options.ratio && !missing) {
        const part = options.ratio(row);
        cell.append(el("span", { class: "bar ratio" }, el("i", { class: part < 0 ? "down" : "up", style: (part < 0 ? "right" : "left") + ":50%;width:" + (50 * Math.abs(part)).toFixed(1) + "%" })));
      }
      return cell;
    })));
    const heads = columns.map(([heading, , options = {}]) => el("th", { class: options.left || options.name ? "left" : null, title: options.title }, heading));
    (where || page).append(el("div", { class: "table" }, el("table", {}, [el("thead", {}, el("tr", {}, heads)), el("tbody", {}, body)])));
  };
  const leftOut = (shown, all, what) => { if (all > shown) page.append(el("div", { class: "more" }, "The first " + count(shown) + " of " + plural(all, what) + "; the JSON report has all.")); };

  /* ---- header ---- */
  const NOT_KNOWN = "not known";
  const facts = (rows) => el("div", { class: "facts" }, rows.filter(([, value]) => value !== null).map(([label, value]) => el("span", {}, [label + " ", el("b", {}, value)])));
  const outcomeText = ({ outcome }) => (outcome === "exited" ? "finished" : outcome);
  const versionsText = ({ castor, torch, python }) => "Castor " + (castor || NOT_KNOWN) + ", PyTorch " + (torch || NOT_KNOWN) + ", Python " + (python || NOT_KNOWN);
  const machineText = ({ host, processor, cores, memory_bytes: memory, kernel, gpus }) => (host === null ? NOT_KNOWN
    : [host, processor, cores && "cores: " + cores, memory && bytes(memory), kernel, gpus && "GPU: " + gpus].filter(Boolean).join("; "));
  const optionsOf = (run) => (run.options ? run.options.filter((option) => option.name !== "CASTOR_PLUGIN") : []);
  const aboutTable = (rows) => page.append(el("dl", { class: "about" }, rows.flatMap(([label, ...values]) => [el("dt", {}, label), ...values.map((value) => el("dd", {}, value))])));
  const optionLines = (run) => (run.options === null ? [NOT_KNOWN] : optionsOf(run).length ? optionsOf(run).map(({ name, value, from }) => [el("code", {}, name + "=" + value), " (" + from + ")"]) : ["the defaults"]);

  /* Of the nodes the one that filled its budget most. */
  const boundedNode = () => data.budgets.nodes.reduce((most, node) => {
    const filled = ({ budget_bytes: budget, in_memory_peak_bytes: peak }) => (budget ? peak / budget : 0);
    return !most || filled(node) > filled(most) ? node : most;
  }, null);
  const diskThen = (node) => (node.on_disk_then_bytes === null || !node.in_memory_peak_bytes ? node.on_disk_peak_bytes : node.on_disk_then_bytes);

  const header = () => {
    const outcome = data.outcome;
    const mood = outcome === "exited" ? "good" : data.first_failure || /^(failed|died)/.test(outcome) ? "bad" : "warn";
    const node = boundedNode(), { device } = data.budgets;
    page.append(
      el("div", { class: "eyebrow" }, [el("span", {}, "Castor report"), themeButton()]),
      el("div", { class: "headline" }, [el("h1", {}, data.job), el("span", { class: "pill " + mood, id: "outcome" }, outcomeText(data))]),
      el("code", { class: "command" }, data.command || "command not known"),
      facts([
        ["plugin", data.plugin || NOT_KNOWN], ["ranks", totals.ranks + " on " + plural(totals.nodes, "node") + (data.ranks_started ? ", " + data.ranks_started : "")],
        ["started", data.started.replace("T", " ").replace("Z", " UTC")], ["lasted", seconds(data.duration_seconds)],
      ]));
    if (node || device)
      page.append(el("div", { id: "budget" }, facts([
        ["memory", node ? (node.in_memory_peak_bytes ? bytes(node.in_memory_peak_bytes) + (node.budget_bytes ? " of the budget of " + bytes(node.budget_bytes) : "") + " at the peak" : null) : null],
        ["on disk", node ? bytes(diskThen(node)) + (node.in_memory_peak_bytes ? " then" : "") + (data.budgets.nodes.length > 1 ? ", on " + node.host : "") : null],
        ["fullest device", device ? bytes(device.peak_bytes) + " of the budget of " + bytes(device.budget_bytes) + " for model data" : null],
      ])));
    aboutTable([["options", ...optionLines(data)], ["versions", versionsText(data.versions)], ["machine", machineText(data.machine)]]);
  };

  const cards = () => {
    const ranks = data.ranks, list = [];
    const add = (label, figure, detail) => list.push(el("div", { class: "card" }, [
      el("div", { class: "label" }, label), el("div", { class: "figure" }, figure), el("div", { class: "detail" }, detail)]));
    const slowest = ranks.reduce((a, b) => ((b.step_seconds || 0) > (a.step_seconds || 0) ? b : a), ranks[0]);
    if (slowest && slowest.step_seconds)
      add("Step time, median", seconds(slowest.step_seconds), who(slowest.rank) + "; 90% within " + seconds(slowest.step_p90_seconds));
    const steps = Math.max(0, ...ranks.map((rank) => rank.steps));
    if (steps > 0 || ranks.some((rank) => rank.micro_steps > 0)) add("Steps", count(steps), plural(Math.max(0, ...ranks.map((rank) => rank.micro_steps)), "backward pass").replace("passs", "passes"));
    const peakOf = (rank) => (rank.memory ? rank.memory.peak.bytes : Object.values(rank.peak_bytes).reduce((a, b) => a + b, 0));
    const fullest = ranks.reduce((a, b) => (peakOf(b) > peakOf(a) ? b : a), ranks[0]);
    if (fullest && peakOf(fullest) > 0) add("Tensors in memory", bytes(peakOf(fullest)), "at the peak, on " + who(fullest.rank) + ", the fullest");
    const node = boundedNode();
    if (node && node.in_memory_peak_bytes) add("Memory of the node", bytes(node.in_memory_peak_bytes), node.budget_bytes ? "at the peak; the budget is " + bytes(node.budget_bytes) : "at the peak");
    if (node && diskThen(node)) add("On disk", bytes(diskThen(node)), node.in_memory_peak_bytes ? "at that peak" : "at most");
    const pss = ranks.reduce((sum, rank) => sum + (rank.pss_peak_bytes || 0), 0);
    if (pss > 0) add("Processes (PSS)", bytes(pss), "with their libraries; the sum of the ranks' peaks");
    const model = data.model_data;
    if (model.bytes_per_param) add("Model data", model.bytes_per_param.toFixed(2) + " B", "per parameter and node, of " + count(model.numel));
    const waited = ranks.reduce((sum, rank) => sum + rank.wait_seconds, 0), lived = ranks.reduce((sum, rank) => sum + rank.lived_seconds, 0);
    if (waited > 0) add("Waiting for ranks", share(waited, lived), seconds(waited) + " in all");
    const split = ranks.filter((rank) => rank.calls_by_rows + rank.calls_whole > 0).sort((a, b) => b.rows_seconds - a.rows_seconds)[0];
    if (split)
      add("Calls by rows", count(split.calls_by_rows), (split.calls_1f1b ? count(split.calls_1f1b) + " of them in 1F1B; " : "") + count(split.calls_whole) + " calls of models whole on every rank; gathering rows took " + who(split.rank) + " " + seconds(split.rows_seconds));
    const collectives = Object.values(data.collectives);
    if (collectives.length)
      add("Collectives", count(collectives.reduce((sum, row) => sum + row.count, 0)), bytes(collectives.reduce((sum, row) => sum + row.bytes, 0)) + " given by all ranks");
    page.append(el("div", { class: "cards" }, list));
  };

  /* ---- memory ---- */
  const kinds = Object.keys(totals.memory);
  const stacked = kinds.filter((kind) => totals.memory[kind] === "stacked");
  const whole = kinds.filter((kind) => totals.memory[kind] === "whole");
  const colorOf = (kind) => "var(--" + kind + ", #8a94a0)";
  const describe = {
    param: "parameters", grad: "gradients", optim: "optimizer states", private: "a rank's own copies of shared pages",
    other: "PyTorch's blocks that are no model data: activations, batches, workspaces",
    pss: "proportional set size: the whole process with interpreter and libraries; of a page that several processes share, its part",
    disk: "parameters, gradients and states that are on disk alone",
    device_slots: "on devices: copies of parameters that are on the host", device_other: "on devices: activations, workspaces, unused blocks",
  };
  const labelOf = (kind) => ({ link_to_device: "to the device", link_to_host: "to the host", disk: "on disk", in_memory: "in memory", pss: "PSS" })[kind] || kind.replace("_", " ");
  const hidden = new Set();
  /* What the words mean, below the charts that use them. */
  const words = (kinds) => page.append(el("p", { class: "words" }, kinds.filter((kind) => describe[kind]).flatMap((kind, i) => [i ? "; " : "", el("b", {}, labelOf(kind)), ": " + describe[kind]]).concat(".")));
  const WIDE = innerWidth < 700 ? 560 : 1120; /* of a chart across the page, in its own units: text must stay readable */
  const frame = (width, height, margin) => {
    const canvas = svg("svg", { viewBox: "0 0 " + width + " " + height, role: "img" });
    return { canvas, left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom, width, height };
  };
  const axes = (box, mostX, mostY, formatX, formatY, binary) => {
    const { canvas } = box;
    const x = (value) => box.left + (box.right - box.left) * (mostX > 0 ? value / mostX : 0);
    const y = (value) => box.bottom - (box.bottom - box.top) * (mostY > 0 ? value / mostY : 0);
    for (const value of ticks(mostY, 4, binary)) {
      canvas.append(svg("line", { class: value === 0 ? "base" : "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
      canvas.append(svg("text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, formatY(value)));
    }
    for (const value of ticks(mostX, 6, false))
      canvas.append(svg("text", { x: x(value), y: box.bottom + 16, "text-anchor": value === 0 ? "start" : "middle" }, formatX(value)));
    return { x, y };
  };
  const atPointer = (event, canvas, width) => {
    const area = canvas.getBoundingClientRect();
    return (event.clientX - area.left) / area.width * width;
  };

  /* Areas on top of each other, and lines: series are {kind, values, dashed}, a value for each interval from `begin` on. */
  /* `top`: the end of the scale, where several charts have one. `limit`: {bytes, label}, a line across the chart. */
  const highest = (stack, lines, limit) => {
    let most = limit ? limit.bytes : 0;
    for (const { values } of lines) for (const value of values) most = Math.max(most, value);
    const length = Math.max(0, ...stack.map(({ values }) => values.length));
    for (let i = 0; i < length; i++) most = Math.max(most, stack.reduce((total, { values }) => total + values[i], 0));
    return most;
  };
  const stackChart = ({ box, begin, interval, mostSeconds, stack, lines, format, binary, sum, title, top, limit }) => {
    const length = Math.max(0, ...stack.concat(lines).map((series) => series.values.length));
    const sums = Array.from({ length }, (_, i) => stack.reduce((total, series) => total + series.values[i], 0));
    const most = Math.max(1, top || highest(stack, lines, limit)) * 1.04;
    const { x, y } = axes(box, mostSeconds, most, (value) => round(seconds(value)), (value) => round(format(value)), binary);
    const time = (i) => begin + i * interval;
    const below = new Array(length).fill(0);
    for (const { kind, values } of stack) {
      const upper = [], lower = [];
      for (let i = 0; i < length; i++) {
        lower.push([x(time(i)), y(below[i])], [x(Math.min(time(i + 1), mostSeconds)), y(below[i])]);
        below[i] += values[i];
        upper.push([x(time(i)), y(below[i])], [x(Math.min(time(i + 1), mostSeconds)), y(below[i])]);
      }
      const path = upper.concat(lower.reverse()).map(([px, py], i) => (i ? "L" : "M") + px.toFixed(1) + " " + py.toFixed(1)).join("");
      box.canvas.append(svg("path", { d: path + "Z", fill: colorOf(kind), "data-kind": kind }));
    }
    for (const { kind, values, dashed } of lines) {
      const path = values.map((value, i) => (i ? "L" : "M") + x(Math.min(time(i + 0.5), mostSeconds)).toFixed(1) + " " + y(value).toFixed(1)).join("");
      box.canvas.append(svg("path", { d: path, fill: "none", stroke: colorOf(kind), "stroke-width": 1.4, "stroke-dasharray": dashed ? "4 3" : null, "data-kind": kind }));
    }
    if (limit)
      box.canvas.append(
        svg("line", { class: "limit", x1: box.left, x2: box.right, y1: y(limit.bytes), y2: y(limit.bytes), "data-limit": limit.bytes }),
        svg("text", { class: "limit", x: box.right - 4, y: y(limit.bytes) - 5, "text-anchor": "end" }, limit.label));
    const cursor = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
    box.canvas.append(cursor);
    box.canvas.addEventListener("pointermove", (event) => {
      const at = (atPointer(event, box.canvas, box.width) - box.left) / (box.right - box.left) * mostSeconds;
      const i = Math.floor((at - begin) / interval);
      if (i < 0 || i >= length) { cursor.setAttribute("visibility", "hidden"); hideTip(); return; }
      put(cursor, { x1: x(time(i + 0.5)), x2: x(time(i + 0.5)), visibility: "visible" });
      const rows = [...stack].reverse().concat(lines).map(({ kind, values }) => [labelOf(kind), format(values[i]), colorOf(kind)]);
      showTip(event, title + " at " + seconds(time(i)), sum ? [[sum, format(sums[i])], ...rows] : rows);
    });
    box.canvas.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
    return { x, y, time, length };
  };

  /* What is on disk is a line beside the kinds that are in memory. */
  const diskSeries = (memory) => {
    const parts = Object.entries(memory.in_memory).map(([kind, loaded]) => memory.bytes[kind].map((value, i) => value - loaded[i]));
    return parts.length ? [{ kind: "disk", values: parts[0].map((_, i) => parts.reduce((sum, values) => sum + values[i], 0)), dashed: true }].filter(({ values }) => values.some((value) => value > 0)) : [];
  };
  const seriesOf = (memory) => ({
    stack: stacked.filter((kind) => memory.bytes[kind] && !hidden.has(kind)).map((kind) => ({ kind, values: memory.in_memory[kind] || memory.bytes[kind] })),
    lines: whole.filter((kind) => memory.bytes[kind]).map((kind) => ({ kind, values: memory.bytes[kind], dashed: true })).concat(diskSeries(memory)).filter(({ kind }) => !hidden.has(kind)),
  });

  const memoryChart = (rank, mostSeconds, wide, top) => {
    const memory = rank.memory, box = frame(wide ? WIDE : 560, wide ? 260 : 230, { left: 58, right: 12, top: 26, bottom: 24 });
    const { stack: visible, lines } = seriesOf(memory), peak = memory.peak;
    const { x, y, time, length } = stackChart({
      box, begin: memory.begin_seconds, interval: memory.interval_seconds, mostSeconds, stack: visible, lines, format: bytes, binary: true,
      sum: "in memory", title: who(rank.rank), top });
    if (peak.bytes > 0 && !hidden.size && visible.length || peak.bytes > 0 && stacked.every((kind) => !hidden.has(kind))) {
      const index = Math.min(length - 1, Math.floor((peak.at_seconds - memory.begin_seconds) / memory.interval_seconds + 1e-6));
      const px = x(Math.min(time(index + 0.5), mostSeconds)), py = y(peak.bytes), end = px > (box.left + box.right) / 2;
      const place = peak.step > 0 ? ", step " + peak.step + (peak.phase ? " (" + peak.phase + ")" : "") : "";
      box.canvas.append(
        svg("line", { class: "peak", x1: px, x2: px, y1: py, y2: box.bottom }), svg("circle", { class: "peak-dot", cx: px, cy: py, r: 3.6 }),
        svg("text", { class: "peak-label", x: px + (end ? -8 : 8), y: Math.max(12, py - 8), "text-anchor": end ? "end" : "start" }, "peak " + bytes(peak.bytes) + place));
    }
    box.canvas.setAttribute("aria-label", "memory of " + who(rank.rank) + " over time, peak " + bytes(peak.bytes));
    return box.canvas;
  };

  const heldBar = (peak) => {
    const parts = stacked.filter((kind) => peak.held[kind] > 0).map((kind) => [kind, peak.held[kind]]);
    const sum = parts.reduce((total, [, value]) => total + value, 0);
    return [
      el("div", { class: "held" }, parts.map(([kind, value]) => el("i", { style: "width:" + (100 * value / sum).toFixed(2) + "%;background:" + colorOf(kind) }))),
      el("div", { class: "held-text" }, parts.map(([kind, value]) => el("span", {}, [
        el("i", { class: "swatch", style: "background:" + colorOf(kind) }), labelOf(kind) + " " + bytes(value) + ", " + share(value, sum)])))];
  };

  /* What counts against the budget of a node, and the budget. */
  const nodeCharts = (mostSeconds) => {
    const nodes = data.budgets.nodes.filter((node) => node.in_memory_peak_bytes > 0 && node.in_memory.length).slice(0, 8);
    if (!nodes.length) return;
    const limitOf = (node) => (node.budget_bytes ? { bytes: node.budget_bytes, label: "budget " + bytes(node.budget_bytes) } : null);
    const linesOf = (node) => [{ kind: "disk", values: node.on_disk, dashed: true }].filter(({ values }) => values.some((value) => value > 0));
    const stackOf = (node) => [{ kind: "in_memory", values: node.in_memory }];
    const most = Math.max(...nodes.map((node) => highest(stackOf(node), linesOf(node), limitOf(node))));
    page.append(el("div", { class: "charts nodes", id: "nodes" }, nodes.map((node) => {
      const wide = nodes.length === 1, box = frame(wide ? WIDE : 560, wide ? 220 : 200, { left: 58, right: 12, top: 16, bottom: 24 });
      stackChart({ box, begin: node.begin_seconds, interval: node.interval_seconds, mostSeconds, stack: stackOf(node), lines: linesOf(node), format: bytes, binary: true,
        title: node.host, top: most, limit: limitOf(node) });
      box.canvas.setAttribute("aria-label", "memory of node " + node.host + " over time, beside its budget");
      return el("div", { class: "chart" + (wide ? " wide" : "") }, [
        el("header", {}, [el("h3", {}, "node " + node.host), el("span", {}, "chunks in memory and other blocks of all its ranks")]), box.canvas,
        el("div", { class: "held-text" }, [
          el("span", {}, [el("i", { class: "swatch", style: "background:" + colorOf("in_memory") }), "in memory, at most " + bytes(node.in_memory_peak_bytes)]),
          linesOf(node).length ? el("span", {}, [el("i", { class: "swatch rule", style: "border-color:" + colorOf("disk") }), "on disk, " + bytes(diskThen(node)) + " at that peak"]) : null,
          node.budget_bytes ? el("span", {}, [el("i", { class: "swatch rule limit" }), "budget, " + bytes(node.budget_bytes)]) : null])]);
    })));
  };

  const memory = () => {
    const sampled = data.ranks.filter((rank) => rank.memory);
    if (!sampled.length && data.ranks.every((rank) => !rank.pss_peak_bytes && Object.values(rank.peak_bytes).every((value) => value === 0))) return;
    section("Memory over time", sampled.length
      ? "What each rank held in memory, by kind, and under each chart what held the peak. All ranks have one scale. Click a kind to hide or show it."
      : "Not sampled: the job kept counters only, or was too short. Peaks are in the table of ranks.");
    if (!sampled.length) return;
    const present = stacked.concat(whole).filter((kind) => sampled.some((rank) => rank.memory.bytes[kind])).concat(sampled.some((rank) => diskSeries(rank.memory).length) ? ["disk"] : []);
    /* The set size holds the interpreter and libraries too; where that dwarfs the tensors, it starts hidden. */
    const peak = Math.max(...sampled.map((rank) => rank.memory.peak.bytes));
    for (const kind of whole) if (sampled.some((rank) => Math.max(0, ...(rank.memory.bytes[kind] || [])) > 2 * peak)) hidden.add(kind);
    const mostSeconds = Math.max(...sampled.map((rank) => rank.memory.begin_seconds + rank.memory.interval_seconds * Math.max(...Object.values(rank.memory.bytes).map((values) => values.length))));
    let shown = Math.min(6, sampled.length);
    const charts = el("div", { class: "charts", id: "memory" });
    const top = () => Math.max(...sampled.map((rank) => { const { stack, lines } = seriesOf(rank.memory); return highest(stack, lines); }));
    const draw = (most = top()) => charts.replaceChildren(...sampled.slice(0, shown).map((rank) => el("div", { class: "chart" + (sampled.length === 1 ? " wide" : "") }, [
      el("header", {}, [el("h3", {}, who(rank.rank)), el("span", {}, rank.host + ", pid " + rank.pid)]),
      memoryChart(rank, mostSeconds, sampled.length === 1, most), ...heldBar(rank.memory.peak)])));
    page.append(el("div", { class: "legend" }, present.map((kind) => el("button", {
      type: "button", "aria-pressed": String(!hidden.has(kind)), title: describe[kind],
      onclick: (event) => {
        hidden.has(kind) ? hidden.delete(kind) : hidden.add(kind);
        event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(kind)));
        draw();
      },
    }, [el("i", whole.includes(kind) || kind === "disk" ? { class: "swatch rule", style: "border-color:" + colorOf(kind) } : { class: "swatch", style: "background:" + colorOf(kind) }), labelOf(kind)]))));
    nodeCharts(mostSeconds);
    page.append(charts);
    draw();
    words(present);
    if (shown < sampled.length)
      page.append(el("div", { class: "legend" }, el("button", { type: "button", onclick: (event) => { shown = sampled.length; draw(); event.currentTarget.remove(); } },
        "show all " + count(sampled.length) + " ranks")));
  };

  /* ---- devices ---- */
  const MODEL_DATA = ["param", "grad", "optim"], TIERS = ["device", "host", "disk"];
  const RATE_SECONDS = 0.5; /* samples are 0.1 s apart, or more */

  /* What a tier holds, over time: on the host it is what is left. */
  const tierSeries = (memory, tier) => {
    const nothing = new Array(Math.max(0, ...Object.values(memory.bytes).map((values) => values.length))).fill(0);
    const of = (kind) => memory.bytes[kind] || nothing;
    const model = MODEL_DATA.map((kind) => ({ kind, values: tier === "device" ? of("device_" + kind)
      : of(kind).map((value, i) => Math.max(0, value - of("device_" + kind)[i] - of("disk_" + kind)[i])) }));
    const rest = tier === "device" ? ["device_slots", "device_other"] : ["private", "other"];
    return model.concat(rest.map((kind) => ({ kind, values: of(kind) }))).filter(({ values }) => values.some((value) => value > 0));
  };

  /* Bytes per second, from the bytes copied so far. */
  const linkSeries = (memory) => {
    const together = Math.max(1, Math.ceil(RATE_SECONDS / memory.interval_seconds - 1e-6));
    const series = ["link_to_device", "link_to_host"].filter((kind) => memory.bytes[kind]).map((kind) => {
      const values = memory.bytes[kind], windows = Math.max(1, Math.floor(values.length / together)), rates = [];
      for (let i = 0; i < windows; i++) { /* the last one has the rest */
        const begin = i * together, end = i + 1 < windows ? begin + together : values.length;
        rates.push((values[end - 1] - (begin > 0 ? values[begin - 1] : 0)) / ((end - begin) * memory.interval_seconds));
      }
      return { kind, values: rates };
    });
    return { series, interval: together * memory.interval_seconds };
  };

  const deviceLimit = (name, { budget_bytes: budget }) => (name === "device" && budget ? { bytes: budget, label: "budget for model data " + bytes(budget) } : null);
  const deviceCharts = (rank, mostSeconds, tops) => {
    const memory = rank.memory, begin = memory.begin_seconds;
    const chart = (title, about, options) => {
      const box = frame(380, 170, { left: 58, right: 8, top: 12, bottom: 24 });
      const series = options.stack.concat(options.lines);
      stackChart({ box, begin, mostSeconds, title: who(rank.rank) + ", " + title, top: tops[title], ...options });
      box.canvas.setAttribute("aria-label", title + " of " + who(rank.rank) + " over time");
      return el("div", { class: "chart" }, [
        el("header", {}, [el("h3", {}, who(rank.rank) + ": " + title), el("span", {}, about)]), box.canvas,
        el("div", { class: "held-text" }, series.map(({ kind }) => el("span", { title: describe[kind] }, [
          el("i", { class: "swatch", style: "background:" + colorOf(kind) }), labelOf(kind).replace("device ", "") + (options.amount ? ", " + bytes(options.amount[kind]) : "")])))]);
    };
    const tier = (name, about) => {
      const stack = tierSeries(memory, name);
      return stack.length ? [chart(name, about, { stack, lines: [], interval: memory.interval_seconds, format: bytes, binary: true, sum: "in all", limit: deviceLimit(name, rank.device) })] : [];
    };
    const link = linkSeries(memory), device = rank.device;
    const charts = tier("device", device.budget_bytes ? "homes: at most " + bytes(device.budget_bytes) : "no budget").concat(tier("host", ""));
    if (link.series.length)
      charts.push(chart("link", "", { stack: [], lines: link.series, interval: link.interval, format: rate, binary: false,
        amount: { link_to_device: device.link.to_device.bytes, link_to_host: device.link.to_host.bytes } }));
    return charts;
  };

  const devices = () => {
    const sum = (tier, kind) => data.ranks.reduce((total, rank) => total + rank.tiers[tier][kind], 0);
    const tiers = TIERS.map((tier) => ({ tier, ...Object.fromEntries(Object.keys(data.ranks[0] ? data.ranks[0].tiers[tier] : {}).map((kind) => [kind, sum(tier, kind)])) }))
      .filter((row) => Object.values(row).some((value) => value > 0));
    if (!tiers.some((row) => row.tier !== "host")) return;
    const size = (name) => (row) => (row[name] > 0 ? bytes(row[name]) : null);
    section("Memory by tier", "What all ranks hold at the end. Other: activations, batches, workspaces; on a device also the blocks that PyTorch keeps for reuse.");
    table([["tier", (row) => row.tier, { left: true }], ...Object.keys(data.ranks[0].tiers.device).map((kind) => [kind, size(kind)])], tiers);
    const peaks = data.ranks.flatMap((rank) => rank.device_peaks.map((peak) => ({ rank: rank.rank, ...peak })));
    if (peaks.length) {
      section("Devices at their peak", "What each device's memory held when PyTorch's blocks had most bytes of it. Other: activations, batches, workspaces; reserved: unused blocks as well.");
      table([["rank", (row) => (row.rank === null ? "?" : String(row.rank)), { left: true }], ["device", (row) => String(row.device)],
        ...["peak", "param", "grad", "optim", "other", "reserved"].map((name) => [name, size(name)]),
        ["used", size("used"), { title: "in a rehearsal: the most that was used of the device, by whomever" }],
        ["needed", size("needed"), { title: "what a block that had no room would have needed" }],
      ].filter(([, value]) => peaks.some((row) => value(row) !== null)), peaks);
    }
    const ranks = data.ranks.filter((rank) => rank.device);
    if (!ranks.length) return;
    section("Devices", "Where each rank's data was over time, and what crossed the link: homes that moved, copies for slots, parts of optimizer steps.");
    const sampled = ranks.filter((rank) => rank.memory), mostSeconds = Math.max(0, ...sampled.map((rank) => rank.memory.begin_seconds
      + rank.memory.interval_seconds * Math.max(...Object.values(rank.memory.bytes).map((values) => values.length))));
    const charts = el("div", { class: "charts three", id: "devices" }), shown = 4;
    const topOf = (of) => Math.max(...sampled.map(of)); /* one scale for each kind of chart */
    const tops = sampled.length ? { link: topOf((rank) => highest([], linkSeries(rank.memory).series)),
      ...Object.fromEntries(["device", "host"].map((name) => [name, topOf((rank) => highest(tierSeries(rank.memory, name), [], deviceLimit(name, rank.device)))])) } : {};
    charts.append(...sampled.slice(0, shown).flatMap((rank) => deviceCharts(rank, mostSeconds, tops)));
    page.append(charts);
    if (sampled.length > shown)
      page.append(el("div", { class: "legend" }, el("button", { type: "button", onclick: (event) => {
        charts.append(...sampled.slice(shown).flatMap((rank) => deviceCharts(rank, mostSeconds, tops)));
        event.currentTarget.remove();
      } }, "show all " + count(sampled.length) + " ranks")));
    const figure = (value) => (value > 0 ? count(value) : null), amount = (value) => (value > 0 ? bytes(value) : null);
    const moved = (flip) => (flip.count > 0 ? count(flip.count) + ", " + bytes(flip.bytes) : null);
    const reads = ({ uses, home_reads: home }) => Math.max(0, uses - home);
    const part = (name) => ({ device: { slots } }) => (reads(slots) > 0 ? share(slots[name], reads(slots)) : null);
    const fastest = (end) => ({ device: { link } }) => (link[end].max_bytes_per_second ? rate(link[end].max_bytes_per_second) : null);
    if (ranks.some(({ device }) => device.budget_bytes || device.flips.to_host.count || device.slots.uses || device.outside_bytes || device.refused))
      table([
        ["rank", (row) => (row.rank === null ? "?" : String(row.rank)), { left: true }],
        ["moved to the host", ({ device }) => moved(device.flips.to_host), { title: "homes, and their bytes" }],
        ["rescues", ({ device }) => figure(device.flips.rescues), { title: "times that homes moved because an allocation had no room" }],
        ["moved back", ({ device }) => moved(device.flips.to_device)], ["took", ({ device }) => (device.flips.seconds > 0 ? seconds(device.flips.seconds) : null)],
        ["slot uses", ({ device }) => figure(device.slots.uses), { title: "of parameters on the host, by calls that only read them" }],
        ["read a copy", ({ device: { slots } }) => (slots.uses > 0 ? share(reads(slots), slots.uses) : null)],
        ["prefetched", part("prefetched")], ["in time", part("in_time"), { title: "others waited for the copy" }],
        ["read at home", ({ device }) => figure(device.slots.home_reads), { title: "over the link" }], ["copied", ({ device }) => amount(device.slots.copied_bytes)],
        ["steps on the host", ({ device }) => amount(device.host_steps.bytes), { title: "parameters that the processors stepped where they lie, each step counted" }],
        ["link, up to", fastest("to_device"), { title: "to the device" }], ["and back", fastest("to_host"), { title: "to the host" }],
        ["outside", ({ device }) => amount(device.outside_bytes), { title: "model data on the device that has no home, and stays there" }],
        ["refused", ({ device }) => figure(device.refused), { title: "homes that had no room anywhere" }],
      ].filter(([, value]) => ranks.some((row) => value(row) !== null)), ranks);
    leftOut(ranks.length, totals.ranks, "rank");
  };

  /* ---- pipeline ---- */
  const pipeline = () => {
    const batch = data.pipeline;
    if (!batch) return;
    const several = batch.parts > batch.stages, percent = (value) => (100 * value).toFixed(1) + "%";
    section("Pipeline", "Batch " + count(batch.batch) + " of " + plural(batch.microbatches, "microbatch").replace("microbatchs", "microbatches") + " on " + plural(batch.stages, "stage") +
      (several ? " with " + batch.parts + " parts" : "") + ": forwards (F) and backwards (B" + (batch.ranks.some((row) => row.passes.some((pass) => pass.label[0] === "W")) ? ", and W for the parameters' part" : "") + ") of each microbatch" + (several ? ", and the part after the colon" : "") +
      ". Between them a rank idles, or sends and receives." + (batch.on_device ? " These are the host's times: when the device runs what a pass puts on its stream is not seen." : ""));
    const rows = batch.ranks, tall = 24, gap = 5;
    const box = frame(WIDE, 38 + rows.length * (tall + gap), { left: 118, right: 12, top: 8, bottom: 24 });
    const most = batch.seconds > 0 ? batch.seconds : 1e-9, x = (value) => box.left + value / most * (box.right - box.left);
    for (const value of ticks(most, 8, false)) {
      box.canvas.append(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom }));
      box.canvas.append(svg("text", { x: x(value), y: box.bottom + 16, "text-anchor": "middle" }, "+" + round(seconds(value))));
    }
    rows.forEach((row, i) => {
      const top = box.top + i * (tall + gap) + gap / 2;
      box.canvas.append(svg("text", { x: box.left - 10, y: top + tall / 2 + 4, "text-anchor": "end" }, who(row.rank) + ", stage " + row.stage));
      box.canvas.append(svg("rect", { class: "idle", x: box.left, y: top, width: box.right - box.left, height: tall, rx: 3 }));
      for (const pass of row.passes) {
        const wide = Math.max(0.5, x(pass.at_seconds + pass.seconds) - x(pass.at_seconds));
        const shape = svg("rect", { class: "pass " + { F: "forward", B: "backward", W: "weight" }[pass.label[0]], x: x(pass.at_seconds).toFixed(2), y: top, width: wide.toFixed(2), height: tall, rx: 2 });
        shape.addEventListener("pointermove", (event) => showTip(event, pass.label + ", " + who(row.rank), [["begins at", "+" + seconds(pass.at_seconds)], ["takes", seconds(pass.seconds)]]));
        shape.addEventListener("pointerleave", hideTip);
        box.canvas.append(shape);
        if (wide > 7 * pass.label.length + 3)
          box.canvas.append(svg("text", { class: "pass " + { F: "forward", B: "backward", W: "weight" }[pass.label[0]], x: (x(pass.at_seconds) + wide / 2).toFixed(2), y: top + tall / 2 + 4, "text-anchor": "middle" }, pass.label));
      }
    });
    page.append(el("div", { class: "chart", id: "pipeline" }, [box.canvas]));
    leftOut(rows.length, totals.stages, "rank");
    table([
      ["rank", (row) => (row.rank === null ? "?" : String(row.rank)), { left: true }], ["stage", (row) => String(row.stage)],
      ["idle", (row) => percent(row.idle), { bar: (row) => [Math.min(1, row.idle), 0], title: "of the last " + plural(batch.idle_of_batches, "batch").replace("batchs", "batches") }],
      ["ideal", () => percent(batch.ideal_idle), { title: "if all passes took equally long, and messages no time" }],
    ], rows);
  };

  /* ---- steps ---- */
  const rankColor = (i, all) => "hsl(" + (210 + Math.round(i * 300 / Math.max(1, all))) % 360 + " 48% var(--rank-light))";
  const PAUSE = 5; /* times the median: no step takes so long; the script did something else between two steps */
  const medianOf = (values) => [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) / 2)];
  const steps = () => {
    const ranks = data.ranks.filter((rank) => rank.step_times.seconds.length > 1).slice(0, 24);
    if (!ranks.length) return;
    const pauseOf = (rank) => PAUSE * (rank.step_seconds || medianOf(rank.step_times.seconds));
    const isPause = (rank, k) => rank.step_times.seconds[k] > pauseOf(rank);
    const pauses = ranks.map((rank) => rank.step_times.seconds.map((value, k) => ({ begin: rank.step_times.at_seconds[k] - value, end: rank.step_times.at_seconds[k], k })).filter(({ k }) => isPause(rank, k)));
    const most = Math.max(...ranks.flatMap((rank) => rank.step_times.seconds.filter((_, k) => !isPause(rank, k)))) * 1.06;
    section("Steps", "Time from each step to the next, of the optimizer that stepped most." +
      (pauses.some((list) => list.length) ? " Gaps, with a grey ground: no step for longer than " + PAUSE + " times the median, as in an evaluation or while a checkpoint is written." : ""));
    const box = frame(WIDE, 220, { left: 62, right: 12, top: 14, bottom: 24 });
    const times = ranks.flatMap((rank) => rank.step_times.at_seconds), begin = Math.max(0, Math.min(...times, ...pauses.flat().map((pause) => pause.begin))), end = Math.max(...times);
    const { x, y } = axes(box, end - begin, most, (value) => "+" + round(seconds(value)), (value) => round(seconds(value)), false);
    for (const pause of pauses[0]) {
      const left = x(Math.max(0, pause.begin - begin)), right = x(pause.end - begin);
      box.canvas.append(svg("rect", { class: "pause", x: left.toFixed(1), width: Math.max(1, right - left).toFixed(1), y: box.top, height: box.bottom - box.top }));
    }
    ranks.forEach((rank, i) => {
      const { at_seconds: at, seconds: taken } = rank.step_times;
      let path = "", open = false;
      taken.forEach((value, k) => {
        if (isPause(rank, k)) { open = false; return; }
        path += (open ? "L" : "M") + x(at[k] - begin).toFixed(1) + " " + y(value).toFixed(1);
        open = true;
      });
      box.canvas.append(svg("path", { class: "steps", d: path, fill: "none", stroke: rankColor(i, ranks.length), "stroke-width": 1.7, "stroke-linejoin": "round", "stroke-linecap": "round" }));
      if (taken.length <= 60)
        taken.forEach((value, k) => { if (!isPause(rank, k)) box.canvas.append(svg("circle", { cx: x(at[k] - begin), cy: y(value), r: 2.3, fill: rankColor(i, ranks.length) })); });
    });
    const cursor = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
    box.canvas.append(cursor);
    box.canvas.addEventListener("pointermove", (event) => {
      const at = begin + (atPointer(event, box.canvas, box.width) - box.left) / (box.right - box.left) * (end - begin);
      const rows = ranks.slice(0, 12).map((rank, i) => {
        const pause = pauses[i].find((one) => one.begin <= at && at <= one.end);
        if (pause) return [who(rank.rank), "no step for " + seconds(pause.end - pause.begin), rankColor(i, ranks.length)];
        const list = rank.step_times.at_seconds;
        let nearest = 0;
        for (let k = 1; k < list.length; k++) if (Math.abs(list[k] - at) < Math.abs(list[nearest] - at)) nearest = k;
        return [who(rank.rank), seconds(rank.step_times.seconds[nearest]), rankColor(i, ranks.length)];
      });
      put(cursor, { x1: x(at - begin), x2: x(at - begin), visibility: at < begin || at > end ? "hidden" : "visible" });
      showTip(event, "at " + seconds(Math.max(0, at)), rows);
    });
    box.canvas.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
    page.append(el("div", { class: "chart", id: "steps" }, [box.canvas, el("div", { class: "held-text" }, ranks.map((rank, i) => el("span", {}, [
      el("i", { class: "swatch", style: "background:" + rankColor(i, ranks.length) }), who(rank.rank)])))]));
  };

  const ranks = () => {
    section("Ranks", "Memory: peaks of what each holds (activations: with batches and workspaces; import: its part of PyTorch and other libraries; rest: the interpreter's own memory, freed blocks; PSS: the whole process). Time: in backward passes, optimizer steps and waits of the script's thread; collectives and gradient sums run beside it.");
    const part = (name) => [(row) => (row[name] > 0 ? seconds(row[name]) : null), { bar: (row) => [Math.min(1, row.lived_seconds > 0 ? row[name] / row.lived_seconds : 0), 0] }];
    const size = (name) => (row) => (row.peak_bytes[name] > 0 ? bytes(row.peak_bytes[name]) : null);
    table([
      ["rank", (row) => (row.rank === null ? "?" : String(row.rank)), { left: true }], ["end", (row) => row.end.text, { left: true }], ["steps", (row) => count(row.steps)],
      ["step time", (row) => (row.step_seconds ? seconds(row.step_seconds) : null)],
      ["param", size("param")], ["grad", size("grad")], ["optim", size("optim")], ["activations", size("other")],
      ["import", (row) => (row.import_bytes ? bytes(row.import_bytes) : null)], ["rest", (row) => (row.rest_peak_bytes ? bytes(row.rest_peak_bytes) : null)],
      ["PSS", (row) => (row.pss_peak_bytes ? bytes(row.pss_peak_bytes) : null)],
      ["backward", ...part("backward_seconds")], ["optimizer", ...part("optimizer_seconds")], ["waits", ...part("wait_seconds")],
      ["collectives", ...part("collective_seconds")], ["sums", ...part("reduce_seconds")],
    ], data.ranks);
    leftOut(data.ranks.length, totals.ranks, "rank");
    const nodes = data.model_data.nodes.filter((node) => node.bytes > 0);
    if (!nodes.length) return;
    section("Model data per node", "Chunks are kept once per node; private copies are those of all its ranks.");
    const figure = (name) => (row) => (row[name] > 0 ? bytes(row[name]) : null);
    table([["node", (row) => row.host, { left: true }], ["parameters", (row) => count(row.numel)], ["param", figure("param")], ["grad", figure("grad")], ["optim", figure("optim")],
      ["private copies", figure("private")], ["sum", figure("bytes")], ["bytes per parameter", (row) => (row.bytes_per_param ? row.bytes_per_param.toFixed(2) : null)], ["peak", figure("peak_bytes")],
      ["sent to other nodes", figure("sent_bytes")]], nodes);
  };

  /* ---- tables ---- */
  const collectives = () => {
    const rows = data.collective_classes;
    if (!rows.length) return;
    section("Collectives", "By operation, group and size. Bus bandwidth follows NCCL's tests (all-reduce: 2(n−1)/n of the buffer); the second one leaves out the time before the last rank had begun, which the bar shows hatched.");
    const most = Math.max(...rows.map((row) => row.seconds));
    table([
      ["operation", (row) => symbol(row.operation), { name: true }], ["group", (row) => row.group, { left: true }], ["ranks", (row) => String(row.ranks)],
      ["size", (row) => row.size, { left: true }], ["count", (row) => count(row.count)], ["bytes", (row) => (row.bytes > 0 ? bytes(row.bytes) : null)],
      ["time", (row) => seconds(row.seconds), { bar: (row) => [most > 0 ? row.seconds / most : 0, row.seconds > 0 && row.late_seconds ? row.late_seconds / row.seconds : 0] }],
      ["mean", (row) => seconds(row.seconds / row.count)], ["longest", (row) => seconds(row.max_seconds)],
      ["late ranks", (row) => (row.late_seconds === null ? null : share(row.late_seconds, row.seconds))],
      ["bus bandwidth", (row) => (row.bus_bytes_per_second ? rate(row.bus_bytes_per_second) : null)],
      ["without waiting", (row) => (row.transfer_bus_bytes_per_second ? rate(row.transfer_bus_bytes_per_second) : null)],
    ], rows);
    leftOut(rows.length, totals.classes, "line");
  };

  const counters = (title, about, heading, rows, all) => {
    const list = Object.entries(rows).map(([name, row]) => ({ name, ...row }));
    if (!list.length) return;
    section(title, about);
    const most = Math.max(...list.map((row) => row.seconds));
    table([
      [heading, (row) => symbol(row.name), { name: true }], ["count", (row) => count(row.count)], ["bytes", (row) => (row.bytes > 0 ? bytes(row.bytes) : null)],
      ["time", (row) => time(row, row.seconds), { bar: (row) => [most > 0 ? row.seconds / most : 0, 0] }],
      ["mean", (row) => time(row, row.seconds / row.count)], ["longest", (row) => time(row, row.max_seconds)],
    ], list);
    if (list.some((row) => row.estimated)) page.append(el("div", { class: "more" }, "~ estimated: short calls are timed by sample."));
    if (all) leftOut(list.length, all, "function");
  };

  const phases = () => {
    const rows = data.ranks.filter((row) => row.phases);
    if (!rows.length) return;
    section("Where the time went", "Of the script's thread, from the start of the process to its end. Forward: what leads to a backward pass; evaluation: batches without one; rest: the script's own code.");
    const part = (row, name) => (row.lived_seconds > 0 ? row.phases[name] / row.lived_seconds : 0);
    const used = Object.keys(rows[0].phases).filter((name) => rows.some((row) => part(row, name) > 0.0005));
    table([["rank", (row) => (row.rank === null ? "?" : String(row.rank)), { left: true }], ["lived", (row) => seconds(row.lived_seconds)],
      ...used.map((name) => [name.replace("_", "-"), (row) => (part(row, name) > 0.0005 ? seconds(row.phases[name]) + ", " + share(row.phases[name], row.lived_seconds) : null),
        { bar: (row) => [part(row, name), 0] }])], rows);
  };

  const time = (row, figure) => (figure > 0 ? (row.estimated ? "~" : "") + seconds(figure) : null);

  const slowest = () => {
    const rows = data.slowest_calls;
    if (!rows.length) return;
    section("Slowest calls", "The longest single calls and collectives of the job, of 0.1 ms or more.");
    const most = rows[0].seconds;
    table([
      ["call", (row) => symbol(row.name), { name: true }], ["rank", (row) => (row.rank === null ? "?" : String(row.rank))], ["thread", (row) => String(row.thread)],
      ["at", (row) => seconds(row.at_seconds)], ["bytes", (row) => (row.bytes > 0 ? bytes(row.bytes) : null)],
      ["took", (row) => seconds(row.seconds), { bar: (row) => [most > 0 ? row.seconds / most : 0, 0] }],
    ], rows);
  };

  const chunks = () => {
    const row = data.chunks;
    if (!row.count && !Object.keys(row.events).length) return;
    section("Chunks", plural(row.count, "chunk") + " of " + bytes(row.size) + "; " + plural(row.moves, "move") + " between tiers, " + bytes(row.bytes_moved) + ".");
    counters("What happened to chunks", null, "event", row.events);
  };

  const coverage = () => {
    const { hooked, missed } = data.coverage, trace = data.trace;
    section("Coverage", "Functions of the hook table that were found in the job's processes, of those whose library is loaded.");
    if (hooked + missed > 0)
      page.append(el("div", { class: "coverage", id: "coverage" }, [
        el("div", { class: "track" }, el("i", { style: "width:" + (100 * hooked / (hooked + missed)).toFixed(1) + "%" })),
        el("span", {}, count(hooked) + " found, " + count(missed) + " missed")]));
    if (data.coverage.export_tables > 0)
      page.append(el("p", {}, plural(data.coverage.export_tables, "undocumented function table") + " fetched from the CUDA driver: calls through them are not seen."));
    for (const [name, row] of Object.entries(data.coverage.also))
      if (row.missed) page.append(el("p", {}, "Not seen: " + name + " (CASTOR_TRACE_ALSO), since " + row.missed + "."));
    page.append(el("p", {}, plural(trace.records, "record") + " of " + plural(trace.processes, "process").replace("processs", "processes") + " in " + bytes(trace.bytes) +
      (trace.truncated ? ", not complete: " + count(trace.dropped) + " records were only counted." : ".")));
  };

  const notes = () => {
    if (!data.notes.length && !data.problems.length) return;
    section("Notes");
    for (const note of data.notes) page.append(el("div", { class: "note" }, note));
    for (const problem of data.problems) page.append(el("div", { class: "note bad" }, "not read: " + problem));
  };

  /* ---- two runs beside each other ---- */
  const compared = () => {
    const runs = [data.a, data.b], ratioOf = (pair) => (pair.ratio === null ? null : pair.ratio.toFixed(2));
    const shown = (unit, value) => (value === null ? null : unit === "seconds" ? seconds(value) : unit === "bytes" ? bytes(value) : unit === "count" ? count(value) : value.toFixed(2));
    page.append(
      el("div", { class: "eyebrow" }, [el("span", {}, "Castor report: two runs"), themeButton()]),
      el("div", { class: "headline" }, el("h1", {}, data.b.job + " beside " + data.a.job)));
    const row = (label, value) => [label, ...runs.map(value)];
    const about = [
      ["", "A", "B"], row("directory", (run) => run.directory), row("command", (run) => el("code", {}, run.command || NOT_KNOWN)), row("plugin", (run) => run.plugin || NOT_KNOWN),
      row("outcome", outcomeText), row("options", (run) => optionLines(run).map((line) => el("div", {}, line))), row("versions", (run) => versionsText(run.versions)),
      row("machine", (run) => machineText(run.machine))];
    page.append(el("div", { class: "table" }, el("table", { id: "runs" }, about.map(([label, ...values], i) => el("tr", {}, [
      el(i ? "th" : "td", { class: "left" }, label), ...values.map((value) => el(i ? "td" : "th", { class: "left wraps" }, value))])))));
    /* The share of the ratio that is more than 1, or less, as a bar to either side. */
    const ratioBar = (pair) => (pair.ratio === null ? null : Math.max(-1, Math.min(1, Math.log2(pair.ratio) / 2)));
    const cells = (of, unit) => [
      ["A", (line) => shown(unit(line), of(line).a)], ["B", (line) => shown(unit(line), of(line).b)],
      ["B/A", (line) => ratioOf(of(line)), { ratio: (line) => ratioBar(of(line)) }]];
    const figures = totals.figures.map((figure) => ({ ...figure, pair: data.figures[figure.key] })).filter(({ pair }) => pair.a !== null || pair.b !== null);
    section("Figures", "B/A above 1: B has more. The bar goes to the right for more and to the left for less, to the end at a factor of 4.");
    table([["", (line) => line.label.trim(), { left: true }], ...cells((line) => line.pair, (line) => line.unit)], figures);
    for (const [key, title, heading] of [["collectives", "Collectives", "operation"], ["calls", "Calls", "function"], ["waits", "Waits for other ranks", "for"]]) {
      const lines = Object.entries(data[key]).map(([name, pairs]) => ({ name, ...pairs }));
      if (!lines.length) continue;
      section(title, "All ranks, by the longer of both times.");
      const group = (name, unit) => cells((line) => line[name], () => unit).map(([label, ...rest]) => [(label === "B/A" ? "" : name === "seconds" ? "time " : name + " ") + label, ...rest]);
      table([[heading, (line) => symbol(line.name), { name: true }], ...group("count", "count"), ...group("bytes", "bytes").slice(0, 2), ...group("seconds", "seconds")], lines);
      leftOut(lines.length, totals[key], "name");
    }
    for (const [letter, run] of [["A", data.a], ["B", data.b]])
      for (const note of run.notes) page.append(el("div", { class: "note" }, letter + ": " + note));
  };

  if (data.comparison_version) compared();
  else for (const part of [header, cards, notes, memory, devices, pipeline, steps, ranks, phases, collectives,
    () => counters("Calls", "Intercepted functions of all processes, by time.", "function", data.calls, totals.calls), slowest,
    () => counters("Waits for other ranks", null, "for", data.waits), chunks, () => counters("Events", null, "event", data.events), coverage]) part();
  page.append(el("footer", {}, "Made by castor report from " + (data.directory || data.a.directory + " and " + data.b.directory) + ". This page holds all it shows; it loads nothing."));
  root.dataset.ready = "true";
})();
