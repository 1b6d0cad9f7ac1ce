"use strict";

// Asks /v1/pool and /health every two seconds and shows what they say. Texts of strangers (addresses of nodes) only ever
// become text, never markup.

const EVERY_MS = 2000;
const SAMPLES_MAX = 150; // five minutes
const SVG = "http://www.w3.org/2000/svg";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
// Counters of the master → what the page calls their rates.
const RATES = [
  ["located", "Objects found", "objects located for clients per second; what they know already is not counted"],
  ["missed", "Misses", "objects asked for that were not there, per second"],
  ["puts_committed", "Puts", "objects stored per second"],
  ["evicted", "Evictions", "objects evicted per second"],
];

const samples = []; // {at, counts}

function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit + 1 < UNITS.length) {
    count /= 1024;
    unit += 1;
  }
  return `${count.toFixed(unit === 0 || count >= 100 ? 0 : 1)} ${UNITS[unit]}`;
}

function share(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "–";
}

function rate(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

function showHealth(health) {
  const badge = document.getElementById("state");
  badge.textContent = health.state;
  badge.className = `badge ${health.state}`;
  document.getElementById("reasons").textContent = health.reasons.join("; ");
}

function showTotals(counts) {
  const used = counts.committed_bytes + counts.unfinished_bytes + counts.retiring_bytes;
  const asked = counts.located + counts.missed;
  const figures = [
    [counts.objects.toLocaleString("en"), "objects"],
    [bytes(used), `in use of ${bytes(counts.capacity_bytes)} (${share(used, counts.capacity_bytes)})`],
    [share(counts.located, asked), "of the objects asked for were there"],
    [`${counts.nodes_ready} of ${counts.nodes}`, "nodes take objects"],
    [counts.evicted.toLocaleString("en"), "objects evicted"],
    [counts.sessions.toLocaleString("en"), "clients and nodes connected"],
  ];
  document.getElementById("figures").replaceChildren(
    ...figures.map(([figure, words]) => {
      const card = element("div", undefined, "figure");
      card.append(element("strong", figure), element("span", words));
      return card;
    }),
  );
}

function bar(node) {
  const picture = drawn("svg", { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", role: "img" });
  let from = 0;
  for (const kind of ["committed", "unfinished", "retiring"]) {
    const width = node.capacity_bytes > 0 ? (100 * node[`${kind}_bytes`]) / node.capacity_bytes : 0;
    picture.append(drawn("rect", { class: kind, x: from, y: 0, width, height: 1 }));
    from += width;
  }
  return picture;
}

function hotCache(node) {
  if (node.hot_capacity_bytes === 0) return "";
  const hits = share(node.hot_hits, node.hot_hits + node.hot_misses);
  return `${bytes(node.hot_used_bytes)} of ${bytes(node.hot_capacity_bytes)}, ${hits} hits`;
}

function showNodes(nodes) {
  document.getElementById("nodes").replaceChildren(
    ...nodes.map((node) => {
      const used = node.committed_bytes + node.unfinished_bytes + node.retiring_bytes;
      const row = element("tr");
      row.append(
        element("td", node.address),
        element("td", node.state),
        element("td", node.tier),
        element("td", node.objects.toLocaleString("en"), "number"),
        element("td", bytes(used), "number"),
        element("td", bytes(node.capacity_bytes), "number"),
        element("td", bytes(node.hard_pinned_bytes), "number"),
        element("td", hotCache(node), "number"),
      );
      const cell = element("td");
      cell.append(bar(node));
      row.append(cell);
      return row;
    }),
  );
}

function line(values) {
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, i) => `${(100 * i) / (SAMPLES_MAX - 2)},${(28 - (26 * value) / most).toFixed(2)}`);
  const picture = drawn("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none" });
  if (points.length > 1) picture.append(drawn("path", { d: `M${points.join("L")}` }));
  return picture;
}

function showRates() {
  document.getElementById("rates").replaceChildren(
    ...RATES.map(([counter, name, words]) => {
      const values = samples.slice(1).map((sample, i) => {
        const before = samples[i];
        // Counters begin anew with a new master.
        const grown = Math.max(sample.counts[counter] - before.counts[counter], 0);
        return (1000 * grown) / (sample.at - before.at);
      });
      const card = element("div", undefined, "rate");
      card.title = words;
      card.append(element("strong", `${rate(values.at(-1) ?? 0)}/s `), element("span", name), line(values));
      return card;
    }),
  );
}

async function look() {
  try {
    const [pool, health] = await Promise.all(
      ["v1/pool", "health"].map(async (path) => (await fetch(path, { cache: "no-store" })).json()),
    );
    samples.push({ at: performance.now(), counts: pool.counts });
    if (samples.length > SAMPLES_MAX) samples.shift();
    document.getElementById("where").textContent = `master ${pool.address}, term ${pool.term}`;
    showHealth(health);
    showTotals(pool.counts);
    showNodes(pool.nodes);
    showRates();
  } catch (error) {
    showHealth({ state: "silent", reasons: [`the master does not answer: ${error.message}`] });
  }
  setTimeout(look, EVERY_MS);
}

look();
