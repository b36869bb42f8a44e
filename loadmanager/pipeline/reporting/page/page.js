// Draws each figure from the specification beside it, in the colours of the page, and tells what is under the pointer.

const dark = matchMedia("(prefers-color-scheme: dark)");
const tip = document.getElementById("tip");

function colour(name) {
  tip.style.color = `var(--${name})`;
  const found = getComputedStyle(tip).color;
  tip.style.color = "";
  return found;
}

function config() {
  const [ink, quiet, edge, line, ahead, limit] = ["ink", "quiet", "edge", "line", "ahead", "limit"].map(colour);
  return {
    background: null,
    font: "system-ui, sans-serif",
    view: { stroke: null },
    axis: { labelColor: quiet, titleColor: quiet, gridColor: edge, domainColor: edge, tickColor: edge, labelFontSize: 11, titleFontWeight: "normal" },
    legend: { labelColor: quiet, titleColor: quiet, labelFontSize: 11 },
    range: { heatmap: ["heat-0", "heat-1", "heat-2", "heat-3", "heat-4"].map(colour), category: ["line", "ahead", "good", "limit", "quiet"].map(colour) },
    style: {
      middle: { color: line, strokeWidth: 1.5 },
      band: { color: line, opacity: 0.28 },
      ahead: { color: ahead, strokeWidth: 1.5 },
      "ahead-band": { color: ahead, opacity: 0.28 },
      limit: { color: limit, strokeDash: [5, 4], strokeWidth: 1 },
      dot: { color: line, opacity: 0.7 },
      strip: { color: ink },
    },
  };
}

function tell(_handler, event, _item, value) {
  if (!value && event?.pointerType === "touch") return; // a finger is gone at once: what it touched stays told
  tip.replaceChildren();
  tip.hidden = !value;
  if (!value) return;
  for (const [title, text] of Object.entries(value)) {
    if (text === "") continue;
    const [term, said] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = title;
    said.textContent = text;
    tip.append(term, said);
  }
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 12) : event.clientY + 18}px`;
}

const drawn = new Map();

async function draw(figure) {
  drawn.get(figure)?.finalize();
  const [plot, text] = [figure.querySelector(".plot"), figure.querySelector("script").textContent];
  drawn.set(figure, await vegaEmbed(plot, JSON.parse(text), { config: config(), renderer: "svg", actions: false, tooltip: tell, defaultStyle: false }));
}

async function drawAll() {
  await Promise.all([...document.querySelectorAll("figure[data-picture]")].map(draw));
  document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
}

// What a link leads to may be in something that is folded.
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  target.scrollIntoView();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
  button.textContent = "copied";
});
addEventListener("hashchange", unfold);
// A finger does not move over what it touches, which is when Vega tells.
document.addEventListener("pointerdown", (event) => {
  if (event.pointerType !== "touch") return;
  tip.hidden = true;
  const { clientX, clientY, pointerType } = event;
  if (event.target.closest(".plot")) event.target.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX, clientY, pointerType }));
});
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
dark.addEventListener("change", drawAll);
drawAll().then(unfold);
