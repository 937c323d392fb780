/**
 * The last minute of a rate as a line, without axes: the figures are next to it.
 *
 * @module
 */

export const POINTS = 60
const WIDTH = 120
const HEIGHT = 24

/** @returns {SVGElement} */
export function makeChart() {
  const chart = document.createElementNS("http://www.w3.org/2000/svg", "svg")
  chart.setAttribute("class", "chart")
  chart.setAttribute("aria-hidden", "true")
  return chart
}

/** The newest is on the right. @param {SVGElement} chart @param {number[]} values */
export function draw(chart, values) {
  if (!chart.firstChild) {
    chart.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`)
    chart.setAttribute("preserveAspectRatio", "none")
    for (const part of ["area", "line"]) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path")
      path.setAttribute("class", part)
      chart.append(path)
    }
  }
  const most = Math.max(...values, 1)
  const step = WIDTH / (POINTS - 1)
  const left = WIDTH - (values.length - 1) * step
  const points = values.map((value, i) => {
    const x = left + i * step
    const y = HEIGHT - 1 - (value / most) * (HEIGHT - 2)
    return `${x.toFixed(1)},${y.toFixed(1)}`
  })
  const [area, line] = chart.children
  line.setAttribute("d", `M${points.join("L")}`)
  area.setAttribute("d", `M${left.toFixed(1)},${HEIGHT}L${points.join("L")}L${WIDTH},${HEIGHT}Z`)
}

/** Rates by name, for as long as they are drawn. */
export class History {
  /** @type {Map<string, number[]>} */
  #values = new Map()

  /** @param {Map<string, number>} rates those that are not in it are removed */
  add(rates) {
    for (const name of this.#values.keys()) if (!rates.has(name)) this.#values.delete(name)
    for (const [name, value] of rates) {
      const values = this.#values.get(name) ?? []
      values.push(value)
      if (values.length > POINTS) values.shift()
      this.#values.set(name, values)
    }
  }

  /** @param {string} name */
  of(name) {
    return this.#values.get(name) ?? []
  }

  clear() {
    this.#values.clear()
  }
}
