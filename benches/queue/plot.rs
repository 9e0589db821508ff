//! Panels of lines over time, as one SVG: readable in light and in dark, and small.

use std::fmt::Write as _;

use crate::series::{Line, Panel, Scale};

const WIDTH: f64 = 450.0;
const HEIGHT: f64 = 236.0;
const COLUMNS: usize = 2;
/// Left edge of the field in a panel.
const LEFT: f64 = 50.0;
const RIGHT: f64 = 438.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 208.0;
/// Maximum number of lines in a panel. With more, the largest are drawn, and the rest as one sum.
const COLORS: usize = 6;

/// Only classes: some programs that show an SVG do not know variables.
const STYLE: &str = "<style>\
    svg{font:11px system-ui,-apple-system,'Segoe UI',sans-serif}.back{fill:#fff}text{fill:#57606a}\
    .ink{fill:#24292f}.title{font-weight:600;font-size:13px}.grid{stroke:#d8dee4;fill:none}\
    .line{fill:none;stroke-width:1.6;stroke-linejoin:round}.key{stroke-width:3}\
    .c0{stroke:#0969da}.c1{stroke:#cf222e}.c2{stroke:#1a7f37}.c3{stroke:#9a6700}.c4{stroke:#8250df}.c5{stroke:#6e7781}\
    .end{text-anchor:end}.middle{text-anchor:middle}\
    @media(prefers-color-scheme:dark){.back{fill:#0d1117}text{fill:#8d96a0}.ink{fill:#e6edf3}.grid{stroke:#30363d}\
    .c0{stroke:#58a6ff}.c1{stroke:#ff7b72}.c2{stroke:#3fb950}.c3{stroke:#d29922}.c4{stroke:#bc8cff}.c5{stroke:#8b949e}}\
    </style>";

/// Draws panels; `minutes` are the times of the values of every line.
pub(crate) fn svg(minutes: &[f64], panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * number(COLUMNS), HEIGHT * number(rows) + 6.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"Sizes, memory and delays over time\">{STYLE}\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" class=\"back\"/>\n"
    );
    for (at, panel) in panels.iter().enumerate() {
        let (x, y) = (WIDTH * number(at % COLUMNS), HEIGHT * number(at / COLUMNS));
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        draw(&mut svg, minutes, panel);
        svg.push_str("</g>\n");
    }
    svg + "</svg>\n"
}

fn draw(svg: &mut String, minutes: &[f64], panel: &Panel) {
    let lines = drawn(&panel.lines);
    let values = || lines.iter().flat_map(|line| &line.values).copied().filter(|v| v.is_finite());
    let y = Axis::of(panel.scale, values());
    let x = Axis::of(Scale::FromZero, minutes.iter().copied());
    let x = Axis { high: minutes.last().copied().unwrap_or(1.0), ..x };
    let _ = writeln!(
        svg,
        "<text class=\"ink title\" x=\"12\" y=\"20\">{}, {}</text>",
        panel.title, panel.unit
    );
    for tick in y.ticks() {
        let at = y.place(tick, BOTTOM, TOP);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/><text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            short(tick)
        );
    }
    for tick in x.ticks() {
        let at = x.place(tick, LEFT, RIGHT);
        let unit = if tick == 0.0 { " min" } else { "" };
        let _ = writeln!(
            svg,
            "<text class=\"middle\" x=\"{at:.1}\" y=\"{}\">{}{unit}</text>",
            BOTTOM + 16.0,
            short(tick)
        );
    }
    legend(svg, &lines);
    for (color, line) in lines.iter().enumerate() {
        let path = path(minutes, &line.values, x, y);
        let _ = writeln!(svg, "<path class=\"line c{color}\" d=\"{}\"/>", path.trim_end());
    }
}

/// Draws a point where a line begins, ends or changes its height, and a gap where it has no value.
fn path(minutes: &[f64], values: &[f64], x: Axis, y: Axis) -> String {
    let up = |at: usize| {
        let value = values.get(at).copied().filter(|value| value.is_finite());
        value.map(|value| format!("{:.1}", y.place(value, BOTTOM, TOP)))
    };
    let (mut path, mut before) = (String::new(), None);
    for (at, minute) in minutes.iter().enumerate() {
        let (here, after) = (up(at), up(at + 1));
        if let Some(place) = &here
            && (here != before || here != after)
        {
            let word = if before.is_some() { 'L' } else { 'M' };
            let _ = write!(path, "{word}{:.1} {place}", x.place(*minute, LEFT, RIGHT));
        }
        before = here;
    }
    path
}

/// Draws two rows of names, each behind its color.
fn legend(svg: &mut String, lines: &[Line]) {
    let per_row = lines.len().div_ceil(2).max(2);
    let step = (RIGHT - 12.0) / number(per_row);
    for (color, line) in lines.iter().enumerate() {
        let x = 12.0 + step * number(color % per_row);
        let y = 34.0 + 14.0 * number(color / per_row);
        let _ = writeln!(
            svg,
            "<path class=\"line key c{color}\" d=\"M{x:.0} {y}h12\"/>\
             <text class=\"ink\" x=\"{:.0}\" y=\"{}\">{}</text>",
            x + 16.0,
            y + 4.0,
            escaped(&line.name)
        );
    }
}

/// Returns the largest lines as they are, and the sum of the others.
fn drawn(lines: &[Line]) -> Vec<Line> {
    let mut lines = lines.to_vec();
    if lines.len() <= COLORS {
        return lines;
    }
    let most = |line: &Line| line.values.iter().copied().fold(0.0, f64::max);
    lines.sort_by(|a, b| most(b).total_cmp(&most(a)));
    let rest = lines.split_off(COLORS - 1);
    let of_rest = |at: usize| rest.iter().filter_map(|line| line.values.get(at)).sum();
    let samples = rest.iter().map(|line| line.values.len()).max().unwrap_or(0);
    lines.push(Line {
        name: format!("{} others", rest.len()),
        values: (0..samples).map(of_rest).collect(),
        slack: None,
    });
    lines
}

/// Range of values on an axis.
#[derive(Debug, Clone, Copy)]
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        match scale {
            Scale::FromZero => {
                let high = values.fold(0.0, f64::max);
                // Up to the next tick, so that the highest line has one above it.
                let step = step(high);
                let high = if high > 0.0 { (high / step).ceil() * step } else { 1.0 };
                Self { scale, low: 0.0, high }
            }
            Scale::Tens => {
                let (low, high) = values
                    .filter(|value| *value > 0.0)
                    .map(f64::log10)
                    .fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
                if low > high {
                    return Self { scale, low: 0.0, high: 1.0 };
                }
                Self { scale, low: low.floor(), high: high.ceil().max(low.floor() + 1.0) }
            }
        }
    }

    /// Returns the place of `value` between `begin` and `end`.
    fn place(self, value: f64, begin: f64, end: f64) -> f64 {
        let value = match self.scale {
            Scale::FromZero => value,
            Scale::Tens => value.log10(),
        };
        begin + (end - begin) * ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn ticks(self) -> Vec<f64> {
        let step = if self.scale == Scale::Tens { 1.0 } else { step(self.high) };
        let ticks = (0..=20_u32).map(|n| self.low + step * f64::from(n));
        let ticks = ticks.take_while(|tick| *tick <= self.high + step * 1e-6);
        match self.scale {
            Scale::FromZero => ticks.collect(),
            Scale::Tens => ticks.map(|tick| 10_f64.powf(tick)).collect(),
        }
    }
}

/// Returns 1, 2 or 5 times a power of ten, of which `high` has two to five.
fn step(high: f64) -> f64 {
    let rough = (high / 5.0).max(f64::MIN_POSITIVE);
    let ten = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * ten).into_iter().find(|n| *n >= rough * 0.999).unwrap_or(ten)
}

/// Prints a value without a tail of zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
