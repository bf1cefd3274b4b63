// Charts over time, drawn by ECharts on a canvas. Tooltips are text of the library's own, never
// markup; colours are those of the style sheet, so a change of theme draws again.

import * as echarts from "./vendor/echarts.esm.min.js";
import { bytes, clock, clocks, clockS, count, part, short, times, zoneName } from "./words.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A chart in an element: `show(data)` draws it, again after a change of theme or size. */
export class Chart {
  constructor(element, options) {
    this.element = element;
    this.options = options;
    this.data = null;
    this.chart = echarts.init(element, null, { renderer: "canvas" });
    this.resized = new ResizeObserver(() => this.chart.resize());
    this.resized.observe(element);
    this.themed = () => this.draw();
    addEventListener("theme", this.themed);
  }

  show(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    if (this.data !== null) this.chart.setOption(this.options(this.data), { notMerge: true, lazyUpdate: true });
  }

  end() {
    removeEventListener("theme", this.themed);
    this.resized.disconnect();
    this.chart.dispose();
  }
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

function base(from, to) {
  const ink = colour("ink");
  const muted = colour("muted");
  const label = { color: muted, fontFamily: FONT, fontSize: 11 };
  return {
    animation: !still.matches,
    animationDuration: 250,
    animationDurationUpdate: 250,
    textStyle: { fontFamily: FONT, color: ink },
    grid: { left: 8, right: 40, top: 14, bottom: 4, containLabel: true },
    tooltip: {
      trigger: "axis",
      renderMode: "richText",
      confine: true,
      transitionDuration: 0,
      backgroundColor: colour("card"),
      borderColor: colour("grid"),
      textStyle: { color: ink, fontSize: 12, fontFamily: FONT },
      axisPointer: { type: "line", lineStyle: { color: muted, type: "dashed" } },
    },
    xAxis: {
      type: "time",
      min: from,
      max: to,
      axisLine: { lineStyle: { color: colour("grid") } },
      axisTick: { show: false },
      name: zoneName(to),
      nameLocation: "end",
      nameGap: 6,
      nameTextStyle: label,
      splitLine: { show: false },
      axisLabel: {
        ...label,
        hideOverlap: true,
        // Without seconds a demo of a minute would have one label many times.
        formatter: (at) => (to - from < 600_000 ? clockS(at) : clock(at)),
      },
    },
    yAxis: {
      type: "value",
      min: 0,
      splitNumber: 4,
      axisLine: { show: false },
      splitLine: { lineStyle: { color: colour("grid") } },
      axisLabel: { ...label, formatter: short },
    },
  };
}

const line = (name, data, tint, more) => ({
  name,
  type: "line",
  data,
  showSymbol: false,
  lineStyle: { width: 1.8, color: tint },
  itemStyle: { color: tint },
  areaStyle: { color: tint, opacity: 0.18 },
  emphasis: { disabled: true },
  ...more,
});

/** The last moment that a history knows. */
export const lastMs = (history) => Math.max(history.began_ms, ...history.ended_ms, ...history.cleanup_ms);

/** Results over time, by phase: cleanup's stand on those of run time. */
export function resultsOption({ history, expected }) {
  const to = lastMs(history);
  const run = [[history.began_ms, 0], ...history.ended_ms.map((at, i) => [at, history.results[i]])];
  const total = history.results.at(-1) ?? 0;
  if (to > run.at(-1)[0]) run.push([to, total]);
  const cleaned = history.cleanup_ms.map((at, i) => [at, total + history.cleanup_results[i]]);
  if (cleaned.length && cleaned[0][1] > total) cleaned.unshift([history.ended_ms.at(-1) ?? cleaned[0][0], total]);
  const option = base(history.began_ms, to);
  const series = [line("run time", run, colour("run"))];
  if (cleaned.length) {
    // Drawn as an area between two lines, so that each moment keeps its own time.
    series.push(line("cleanup", cleaned, colour("clean"), { areaStyle: { color: colour("clean"), opacity: 0.28, origin: total } }));
  }
  if (expected !== null && expected !== undefined) {
    series[0].markLine = {
      silent: true,
      symbol: "none",
      animation: false,
      lineStyle: { color: colour("muted"), type: [6, 4] },
      label: { formatter: `expected ${count(expected)}`, position: "insideStartTop", color: colour("muted"), fontSize: 11 },
      data: [{ yAxis: expected }],
    };
    option.yAxis.max = (axis) => (expected > axis.max ? expected * 1.06 : null);
    option.yAxis.axisLabel.showMaxLabel = false;
  }
  option.series = series;
  option.tooltip.formatter = (found) => {
    const at = found[0].axisValue;
    const says = found.map((each) => {
      const value = each.seriesName === "cleanup" ? each.value[1] - total : each.value[1];
      return `${each.seriesName}: ${count(value)}`;
    });
    return [clocks(at), ...says].join("\n");
  };
  return option;
}

const marks = (name, symbol, tint, data, size, rotate) => ({
  name,
  type: "scatter",
  symbol,
  symbolSize: size,
  symbolRotate: rotate,
  itemStyle: { color: tint, borderColor: colour("card"), borderWidth: 1 },
  data,
  z: 5,
  emphasis: { disabled: true },
});

const hollow = (series) => ({
  ...series,
  itemStyle: { color: colour("card"), borderColor: series.itemStyle.color, borderWidth: 2 },
});

/** A slot's memory against its budget, with spills and groups that came or went marked. */
export function memoryOption({ history, slot, threshold }) {
  const option = base(history.began_ms, Math.max(history.began_ms, ...history.ended_ms));
  const at = history.ended_ms;
  const state = slot.state_bytes.map((size, i) => [at[i], size]);
  const budget = Math.max(1, ...slot.budget_bytes);
  const changes = slot.budget_bytes.some((each) => each !== budget);
  const top = budget * 1.12;
  // Marks lie in rows of their own, above the budget and at the bottom: they hide no memory.
  const row = (counts, y, when = () => true) =>
    at.flatMap((t, i) => (counts[i] && when(i) ? [[t, budget * y, counts[i]]] : []));
  const spills = row(slot.spilled_bytes, 1.065, (i) => !history.flush[i]);
  const flushes = row(slot.spilled_bytes, 1.065, (i) => history.flush[i]);
  const came = row(slot.moved_in, 0.06);
  const went = row(slot.moved_out, 0.06);
  option.grid.top = 8;
  option.yAxis.max = Math.max(top, ...slot.state_bytes);
  option.yAxis.interval = budget / 2;
  option.yAxis.splitLine.showMaxLine = false;
  option.yAxis.axisLabel.formatter = (v) => (v > budget * 1.01 ? "" : bytes(v));
  const level = (value, tint, dash) => ({ yAxis: value, lineStyle: { color: tint, type: dash, width: 1.2 } });
  const memory = line("memory", state, colour("state"), {
    markLine: {
      silent: true,
      symbol: "none",
      animation: false,
      label: { show: false },
      data: changes
        ? []
        : [level(budget, colour("budget"), "solid"), level(budget * threshold, colour("limit"), [5, 4])],
    },
  });
  // A command has changed the budget: what an epoch had holds from the end of the one before it.
  const steps = (share, tint, dash) =>
    line("", slot.budget_bytes.map((each, i) => [at[i], each * share]), tint, {
      step: "start",
      areaStyle: undefined,
      lineStyle: { color: tint, type: dash, width: 1.2 },
    });
  option.series = [
    memory,
    ...(changes ? [steps(1, colour("budget"), "solid"), steps(threshold, colour("limit"), [5, 4])] : []),
    marks("spilled", "triangle", colour("spill"), spills, 7, 180),
    marks("flushed at the seal", "triangle", colour("flush"), flushes, 10, 180),
    marks("came", "diamond", colour("move"), came, 11),
    hollow(marks("went", "diamond", colour("move"), went, 9)),
  ].filter((each) => each.data.length);
  option.tooltip.formatter = (found) => {
    const named = found.filter((each) => each.seriesName);
    const says = named.map((each) => {
      if (each.seriesName === "memory") {
        return `${bytes(each.value[1])} (${part(each.value[1] / slot.budget_bytes[each.dataIndex])})`;
      }
      if (each.seriesName === "came") return `${times(each.value[2], "group")} came`;
      if (each.seriesName === "went") return `${times(each.value[2], "group")} went`;
      return `${bytes(each.value[2])} ${each.seriesName}`;
    });
    return [clocks(found[0].axisValue), ...says].join("\n");
  };
  return option;
}
