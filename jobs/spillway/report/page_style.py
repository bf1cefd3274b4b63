"""The report's style sheet: colours as variables, once for light and once for dark.

Colours are told apart by people who see red and green alike (after Okabe and Ito), and nothing is
said by colour alone: marks differ in shape, lines in dash, and every chart has its legend.
"""

STYLE = """
:root {
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2230; --muted: #5d6879; --grid: #e3e7ed;
  --run: #2b6cb0; --clean: #d9822b; --state: #1f8a70; --folder: #7a8699; --spill: #c0392b;
  --flush: #7d5ba6; --budget: #1b2230; --limit: #c0392b; --kept: #1f8a70; --gone: #c0392b;
  --good: #1f8a70; --good-page: #e8f5f0; --bad: #c0392b; --bad-page: #fbeae8; --open-page: #eef1f5;
  --p0: #2b6cb0; --p1: #7fb2e5; --p2: #b9a3d6; --p3: #1f8a70; --p4: #e0b13c;
  --p5: #c0392b; --p6: #d9822b; --p7: #7d5ba6; --p8: #9aa5b4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10141b; --card: #181e28; --ink: #e7ebf2; --muted: #98a4b5; --grid: #2a3341;
    --run: #63a4e8; --clean: #f0a552; --state: #46bd9b; --folder: #8c98ab; --spill: #f0776a;
    --flush: #b795e0; --budget: #e7ebf2; --limit: #f0776a; --kept: #46bd9b; --gone: #f0776a;
    --good: #46bd9b; --good-page: #16302a; --bad: #f0776a; --bad-page: #3a1f1d;
    --open-page: #202836;
    --p0: #63a4e8; --p1: #3c6ea5; --p2: #7d6a9c; --p3: #46bd9b; --p4: #e0bf62;
    --p5: #f0776a; --p6: #f0a552; --p7: #b795e0; --p8: #66728a;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 40px; }
h1 { font-size: 26px; font-weight: 400; margin: 0; }
h1 strong { font-weight: 650; }
h2 { font-size: 18px; margin: 0; }
h3 { font-size: 15px; margin: 0; }
p { margin: 2px 0 0; }
.muted { color: var(--muted); font-size: 13px; }
.verdict { display: flex; gap: 14px; align-items: center; margin: 20px 0 14px; padding: 14px 18px;
  border-radius: 10px; border-left: 6px solid var(--muted); background: var(--open-page); }
.verdict.good { border-color: var(--good); background: var(--good-page); }
.verdict.bad { border-color: var(--bad); background: var(--bad-page); }
.sign { font-size: 30px; line-height: 1; color: var(--muted); }
.good .sign { color: var(--good); }
.bad .sign { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tile, figure, article { background: var(--card); border: 1px solid var(--grid);
  border-radius: 10px; }
.tile { padding: 10px 14px; }
.tile b { display: block; font-size: 21px; font-weight: 650; white-space: nowrap; }
.tile span { color: var(--muted); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr));
  gap: 14px; margin: 14px 0; }
.cards { columns: 2 420px; column-gap: 14px; }
.cards article { break-inside: avoid; margin: 0 0 14px; }
figure { margin: 0; padding: 14px 16px 10px; display: flex; flex-direction: column; }
figure svg { width: 100%; height: auto; display: block; margin-top: auto; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 6px 0 4px;
  padding: 0; font-size: 13px; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; background: var(--c); }
.swatch.folder { height: 0; border-radius: 0; border-top: 2px dashed var(--c); background: none;
  vertical-align: 4px; width: 16px; }
.swatch.spill, .swatch.flush { clip-path: polygon(0 0, 100% 0, 50% 100%); border-radius: 0; }
article { padding: 14px 16px; }
.scroll { overflow-x: auto; margin-top: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 500; color: var(--muted); }
th, td { padding: 4px 14px 4px 0; border-top: 1px solid var(--grid); vertical-align: top; }
thead th, .pairs tr:first-child > * { border-top: none; }
td { overflow-wrap: anywhere; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.pairs td { text-align: right; padding-right: 0; white-space: nowrap; overflow-wrap: normal; }
footer { margin-top: 20px; }
svg text { font-size: 11.5px; fill: var(--muted); }
svg text.at { paint-order: stroke; stroke: var(--card); stroke-width: 3px; }
svg .mid { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .axis { font-size: 12px; }
.grid { stroke: var(--grid); }
.tree svg text { font: 11.5px ui-monospace, monospace; fill: var(--muted); }
.tree svg .name { font-weight: 650; fill: var(--ink); }
.tree svg { max-width: 100%; height: auto; }
.tree ~ table td:first-child { overflow-wrap: normal; }
.tree .box { fill: var(--page); stroke: var(--grid); }
.tree .edge { fill: none; stroke: var(--muted); }
.frame, .tick { stroke: var(--muted); }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
.line.folder { stroke-dasharray: 3 3; stroke-width: 1.2; }
.area { fill: var(--c); opacity: 0.18; }
.bar { fill: var(--c); }
.bar.faint { opacity: 0.32; }
.level { fill: none; stroke: var(--c); stroke-dasharray: 6 4; }
svg text.level, svg text.budget, svg text.limit, svg text.expected { fill: var(--c); }
.mark { fill: var(--c); }
.hint { fill: transparent; }
.hint:hover { fill: var(--ink); opacity: 0.08; }
.run, .rows { --c: var(--run); }
.clean { --c: var(--clean); }
.state { --c: var(--state); }
.folder { --c: var(--folder); }
.spill { --c: var(--spill); }
.flush { --c: var(--flush); }
.budget { --c: var(--budget); }
.limit { --c: var(--limit); }
.expected { --c: var(--muted); }
.kept { --c: var(--kept); }
.gone { --c: var(--gone); }
.p0 { --c: var(--p0); } .p1 { --c: var(--p1); } .p2 { --c: var(--p2); } .p3 { --c: var(--p3); }
.p4 { --c: var(--p4); } .p5 { --c: var(--p5); } .p6 { --c: var(--p6); } .p7 { --c: var(--p7); }
.p8 { --c: var(--p8); }
@media print { body { background: #fff; } figure, article { break-inside: avoid; } }
"""
