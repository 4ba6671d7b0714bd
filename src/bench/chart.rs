//! A small bar chart of the figures, as SVG: each bar against its goal where there is one.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::figures::Figures;
use super::{BenchError, file_error, read};
use crate::cli::{about, machine};

/// Scenario name to metric name to the value to reach.
pub(super) type Goals = BTreeMap<String, BTreeMap<String, f64>>;

/// A figure that the chart can show.
struct Metric {
    name: &'static str,
    unit: &'static str,
    more_is_better: bool,
    of: fn(&Figures) -> f64,
}

const METRICS: [Metric; 5] = [
    Metric {
        name: "total_tok_s",
        unit: "tok/s",
        more_is_better: true,
        of: |f| f.total_tok_s,
    },
    Metric {
        name: "stream_tok_s",
        unit: "tok/s",
        more_is_better: true,
        of: |f| f.stream_tok_s.p50,
    },
    Metric {
        name: "prompt_tok_s",
        unit: "tok/s",
        more_is_better: true,
        of: |f| f.prompt_tok_s.p50,
    },
    Metric {
        name: "ttft_ms",
        unit: "ms",
        more_is_better: false,
        of: |f| f.ttft_ms.p50,
    },
    Metric {
        name: "itl_ms",
        unit: "ms",
        more_is_better: false,
        of: |f| f.itl_ms.p50,
    },
];

/// # Errors
/// When the file cannot be read, or names a metric that there is not.
pub(super) fn read_goals(path: &Path) -> Result<Goals, BenchError> {
    let goals: Goals =
        serde_json::from_str(&read(path)?).map_err(|cause| file_error(path, &cause))?;
    for name in goals.values().flat_map(BTreeMap::keys) {
        if !METRICS.iter().any(|metric| metric.name == name) {
            let names = METRICS.map(|metric| metric.name).join(", ");
            return Err(file_error(
                path,
                &format!("no metric {name}; choose from {names}"),
            ));
        }
    }
    Ok(goals)
}

const WIDTH: usize = 720;
const ROW: usize = 26;
const MARGIN: usize = 12;
const LABEL: usize = 210;
/// Of the longest bar: twice the goal, or the largest value of a metric without goals.
const BAR: f64 = 300.0;
const MET: &str = "#2e7d32";
const MISSED: &str = "#c62828";
const INK: &str = "#1f2328";
const NEUTRAL: &str = "#546e7a";

pub(super) struct Bar {
    pub label: String,
    pub value: String,
    /// Of the longest bar.
    pub share: f64,
    /// Where the limit is, of the longest bar.
    pub limit: Option<f64>,
    /// Whether the goal is met, if there is one.
    pub met: Option<bool>,
}

/// One bar per scenario and metric, or per goal when there are goals.
pub(super) fn draw(titles: &[String], scenarios: &[Figures], goals: Option<&Goals>) -> String {
    let metrics = || {
        METRICS
            .iter()
            .flat_map(|metric| scenarios.iter().map(move |s| (s, metric)))
    };
    let bars: Vec<Bar> = match goals {
        None => metrics()
            .map(|(figures, metric)| plain_bar(figures, metric, scenarios))
            .collect(),
        Some(goals) => metrics()
            .filter_map(|(figures, metric)| goal_bar(figures, metric, goals))
            .collect(),
    };
    svg(titles, &bars, goals.is_some()).expect("a string takes everything")
}

fn plain_bar(figures: &Figures, metric: &Metric, scenarios: &[Figures]) -> Bar {
    let value = (metric.of)(figures);
    let most = scenarios
        .iter()
        .map(metric.of)
        .fold(f64::MIN_POSITIVE, f64::max);
    Bar {
        share: value / most,
        met: None,
        ..bar(figures, metric, value)
    }
}

fn goal_bar(figures: &Figures, metric: &Metric, goals: &Goals) -> Option<Bar> {
    let goal = *goals.get(figures.name)?.get(metric.name)?;
    let value = (metric.of)(figures);
    let score = if metric.more_is_better {
        value / goal
    } else {
        goal / value
    };
    let plain = bar(figures, metric, value);
    Some(Bar {
        value: format!("{} (goal {goal:.1})", plain.value),
        // A division by zero is a measurement that failed: no bar.
        share: if score.is_finite() {
            (score / 2.0).clamp(0.0, 1.0)
        } else {
            0.0
        },
        met: Some(score.is_finite() && score >= 1.0),
        ..plain
    })
}

fn bar(figures: &Figures, metric: &Metric, value: f64) -> Bar {
    Bar {
        label: format!("{} {}", figures.name, metric.name),
        value: format!("{value:.1} {}", metric.unit),
        share: 0.0,
        limit: None,
        met: None,
    }
}

/// Titles of figures of this binary on this machine: what was measured, and on what.
pub(super) fn own_titles() -> [String; 2] {
    [about::version_line(), machine::measured_on()]
}

/// Colours are attributes: not every program that draws pictures knows styles.
pub(super) fn svg(
    titles: &[String],
    bars: &[Bar],
    has_goals: bool,
) -> Result<String, std::fmt::Error> {
    let head = MARGIN + ROW * titles.len();
    let height = head + MARGIN + ROW * bars.len();
    let mut text = String::new();
    let escaped = |title: &String| title.replace('&', "&amp;").replace('<', "&lt;");
    let titles: Vec<String> = titles.iter().map(escaped).collect();
    writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" font-family=\"sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <title>{}</title>",
        titles.join(", ")
    )?;
    writeln!(text, r##"<rect width="100%" height="100%" fill="#fff"/>"##)?;
    for (row, title) in titles.iter().enumerate() {
        let base = MARGIN + (row + 1) * ROW - 9;
        writeln!(text, r#"<text x="{MARGIN}" y="{base}">{title}</text>"#)?;
    }
    for (row, bar) in bars.iter().enumerate() {
        let top = head + row * ROW;
        let base = top + ROW - 9;
        let width = BAR * bar.share;
        let after = LABEL as f64 + width.max(if bar.met.is_some() { BAR / 2.0 } else { 0.0 }) + 8.0;
        let colour = match bar.met {
            None => NEUTRAL,
            Some(true) => MET,
            Some(false) => MISSED,
        };
        let label = LABEL - 8;
        writeln!(
            text,
            r#"<text x="{label}" y="{base}" text-anchor="end">{}</text>"#,
            bar.label
        )?;
        writeln!(
            text,
            r#"<rect x="{LABEL}" y="{}" width="{width:.1}" height="{}" fill="{colour}"/>"#,
            top + 4,
            ROW - 8
        )?;
        if let Some(limit) = bar.limit {
            let (x, top, bottom) = (LABEL as f64 + BAR * limit, top + 2, top + ROW - 2);
            writeln!(
                text,
                r##"<path d="M{x:.1} {top} V{bottom}" stroke="{MET}" stroke-width="2"/>"##
            )?;
        }
        writeln!(
            text,
            r#"<text x="{after:.1}" y="{base}">{}</text>"#,
            bar.value
        )?;
    }
    if has_goals {
        let x = LABEL as f64 + BAR / 2.0;
        let bottom = height - MARGIN;
        writeln!(
            text,
            "<line x1=\"{x}\" y1=\"{head}\" x2=\"{x}\" y2=\"{bottom}\" \
             stroke=\"#000\" stroke-dasharray=\"4 3\"/>"
        )?;
    }
    text.push_str("</svg>\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &'static str, total_tok_s: f64, ttft: f64) -> Figures {
        let mut figures = Figures {
            name,
            total_tok_s,
            ..Figures::default()
        };
        figures.ttft_ms.p50 = ttft;
        figures
    }

    fn goals(text: &str) -> Goals {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_goal_is_met_from_above_for_rates_and_from_below_for_times() {
        let goals = goals(r#"{"a": {"total_tok_s": 10, "ttft_ms": 10}}"#);
        let drawn = |rate, time| draw(&[], &[figures("a", rate, time)], Some(&goals));
        assert_eq!(drawn(10.0, 10.0).matches(MET).count(), 2);
        assert_eq!(drawn(9.9, 10.1).matches(MISSED).count(), 2);
        assert_eq!(drawn(20.0, 5.0).matches(r#"width="300.0""#).count(), 2);
    }

    #[test]
    fn a_failed_measurement_is_a_missed_goal_without_a_bar() {
        let goals = goals(r#"{"a": {"ttft_ms": 10}}"#);
        let drawn = draw(&[], &[figures("a", 0.0, 0.0)], Some(&goals));
        assert!(
            drawn.contains(MISSED) && drawn.contains(r#"width="0.0""#),
            "{drawn}"
        );
    }

    #[test]
    fn without_goals_bars_compare_scenarios() {
        let titles = ["a <card>".to_string()];
        let drawn = draw(
            &titles,
            &[figures("a", 10.0, 1.0), figures("b", 20.0, 1.0)],
            None,
        );
        assert!(drawn.contains("a total_tok_s") && drawn.contains("20.0 tok/s"));
        assert!(drawn.contains(r#"width="150.0""#) && !drawn.contains("<line"));
        assert!(
            drawn.contains("<title>a &lt;card></title>") && !drawn.contains("style"),
            "{drawn}"
        );
    }

    #[test]
    fn a_goal_for_an_unknown_metric_is_refused() {
        let path = std::env::temp_dir().join(format!("atlas-goals-{}", std::process::id()));
        std::fs::write(&path, r#"{"a": {"speed": 1}}"#).unwrap();
        let error = read_goals(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(
            error.contains("no metric speed; choose from total_tok_s"),
            "{error}"
        );
    }
}
