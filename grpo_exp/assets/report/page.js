"use strict";
// Puts the sections on the page, in their order; each stays away where it has no data.
view.regroup(DATA.configurations > MANY && DATA.varied.length ? DATA.varied[0].key : "configuration");
head();
curvesSection();
heatSection();
parallelSection();
importanceSection();
frontierSection();
tableSection();
failuresSection();
healthSection();
samplesSection();
differencesSection();
document.getElementById("footer").textContent = DATA.footer;
redraws.forEach((draw) => draw()); // only now are the widths known
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));
