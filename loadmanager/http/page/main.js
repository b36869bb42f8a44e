// Starts the page.

import { AuditView } from "./audit.js";
import { BrokerView } from "./broker.js";
import { BundleView } from "./bundle.js";
import { DecisionsView } from "./decisions.js";
import { Dialogs } from "./dialogs.js";
import { DrainsView } from "./drains.js";
import { FleetView } from "./fleet.js";
import { Frame } from "./frame.js";
import { HeatView } from "./heat.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { PlanView, PlansView } from "./plans.js";
import { linkTo, route } from "./route.js";
import { html, render, useCell, useEffect } from "./ui.js";

const TITLES = {
  fleet: "Fleet",
  heat: "Heat map",
  decisions: "Decisions",
  plans: "Plans",
  drains: "Drains",
  audit: "Audit",
};

function view({ view, names }) {
  if (view === "broker" && names.length === 1) return html`<${BrokerView} key=${names[0]} broker=${names[0]} />`;
  if (view === "bundle" && names.length === 3)
    return html`<${BundleView} key=${names.join("/")} bundle=${names.join("/")} />`;
  if (view === "plans" && names.length === 1) return html`<${PlanView} key=${names[0]} hash=${names[0]} />`;
  const View = {
    fleet: FleetView,
    heat: HeatView,
    decisions: DecisionsView,
    plans: PlansView,
    drains: DrainsView,
    audit: AuditView,
  }[view];
  return View && !names.length
    ? html`<${View} />`
    : html`<h1>There is no such view</h1><p><a href=${linkTo("fleet")}>Fleet</a></p>`;
}

function Page() {
  const where = useCell(route);
  useEffect(() => {
    const title = TITLES[where.view] ?? where.names.at(-1) ?? where.view;
    document.title = `${title} · loadmanager`;
  }, [where]);
  return html`<${Frame}>${view(where)}<//><${Dialogs} />`;
}

startKeys();
startLive();
document.getElementById("page").replaceChildren();
render(html`<${Page} />`, document.getElementById("page"));
