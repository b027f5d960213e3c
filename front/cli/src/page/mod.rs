//! The page of `--report FILE.html`: one file that loads nothing.
//!
//! ```text
//! Report --- words: sentences, verdict     \
//!         |- chart, axis: plots over time   +--- html ---> page: CSS, sections, numbers, script
//!         |- heat: latencies over time      |
//!         \- tables                        /
//! ```
//! The page is complete without the script, which only adds a cursor that shows values of the
//! plots. No library for plots is used: uPlot is 50 KB of script, and shows nothing without it; the
//! SVG of plotters has text that shrinks with the page, and colours that do not follow dark mode.
//! maud escapes all text. Locks: none.

mod axis;
mod chart;
mod heat;
mod tables;
mod words;

use crate::report::Report;
use crate::series::grouped;
use crate::summary;
use chart::{charts, data};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The policy of the page: nothing is loaded, whatever its text contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Most steps of a line: a plot is some hundred pixels wide.
const STEPS_MAX: usize = 200;

/// The page of a report.
pub(crate) fn html(report: &Report) -> String {
    let command = words::command_line(&report.command);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (command) " - Highwater" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the report" }
                (head(report, &command))
                main id="main" { (sections(report, &command)) }
                footer {
                    "Highwater " (env!("CARGO_PKG_VERSION")) ". The same run as figures: "
                    code { "--report FILE.json" } "."
                }
            }
        }
    };
    page.into_string()
}

fn head(report: &Report, command: &str) -> Markup {
    html! {
        header {
            p.brand { "Highwater report" }
            h1 { code { (command) } }
            p.meta { (words::outcome(report)) }
            nav aria-label="Sections" {
                @for (id, title) in [
                    ("time", "Over time"),
                    ("latency", "Latency"),
                    ("malloc", "Malloc"),
                    ("locks", "Locks"),
                    ("processes", "Processes"),
                    ("all", "All figures"),
                ] {
                    a href=(format!("#{id}")) { (title) }
                }
            }
        }
    }
}

fn section(id: &str, title: &str, body: Markup) -> Markup {
    html! {
        section id=(id) aria-labelledby=(format!("{id}-title")) {
            h2 id=(format!("{id}-title")) { (title) }
            (body)
        }
    }
}

fn sections(report: &Report, command: &str) -> Markup {
    let samples = grouped(&report.series, STEPS_MAX);
    let charts = charts(&samples);
    html! {
        (verdict(report))
        (section("time", "Over time", html! {
            p.hint hidden { "Point at a plot, or select one and press the arrow keys, to read it." }
            div.grid { @for chart in &charts { (chart.draw(&samples)) } }
        }))
        (section("latency", "Latency of page faults", heat::map(&report.series)))
        (section("malloc", "Malloc by size", tables::malloc(report.malloc.as_ref())))
        (section("locks", "Locks", tables::locks(&report.locks)))
        (section("processes", "Processes", tables::processes(&report.by_process)))
        (section("all", "All figures", html! {
            details {
                summary { "Summary, as printed" }
                pre tabindex="0" { (command) "\n\n" (summary::text(report)) }
            }
            details { summary { "Counters" } (tables::counters(report)) }
        }))
        script type="application/json" id="data" { (PreEscaped(data(&samples, &charts))) }
        script { (PreEscaped(SCRIPT)) }
    }
}

fn verdict(report: &Report) -> Markup {
    let words::Verdict { kind, title, advice } = words::verdict(report);
    html! {
        section.verdict.(kind) aria-labelledby="verdict-title" {
            h2 id="verdict-title" { (title) }
            @for line in &advice { p { (line) } }
        }
        @for problem in summary::problems(report) { p.problem role="alert" { (problem) } }
        dl.tiles {
            @for (name, value, more) in words::tiles(report) {
                div { dt { (name) } dd { strong { (value) } span { (more) } } }
            }
        }
        @for sentence in words::story(report) { p.story { (sentence) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{report, report_of, two_processes, unserved};

    #[test]
    fn names_and_arguments_are_text() {
        let mut report = report(&two_processes());
        report.command = vec!["<script>alert(1)</script>".to_owned(), "\"'&".to_owned()];
        report.by_process.listed[0].name = "</td><img src=x>".to_owned();
        let page = html(&report);
        assert_eq!(page.matches("<script").count(), 2, "the page's own");
        assert!(!page.contains("<img"), "a name became an element");
        assert!(page.contains("'&lt;script&gt;alert(1)&lt;/script&gt;' '&quot;'\\''&amp;'"));
    }

    #[test]
    fn a_page_has_all_sections_and_loads_nothing() {
        let heap = crate::malloc_figures::tests::process(1600, 3);
        for report in [report_of(&two_processes(), Some(&heap)), report(&unserved()), report(&[])] {
            let page = html(&report);
            for id in ["main", "time", "latency", "malloc", "locks", "processes", "all", "data"] {
                assert_eq!(page.matches(&format!(" id=\"{id}\"")).count(), 1, "{id}");
            }
            for load in ["http:", "https:", "src=", "url(", "@import", "<link"] {
                assert!(!page.contains(load), "{load}");
            }
        }
    }

    #[test]
    fn problems_come_with_the_verdict() {
        let mut report = report(&two_processes());
        report.out_of_memory = 1;
        let page = html(&report);
        assert!(page.contains(r#"role="alert">memory and swap were full: 1 process ended"#));
    }
}
