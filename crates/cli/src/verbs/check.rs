//! `raftsman check`.

use std::process::ExitCode;

use raftsman_core::spec::Severity;
use serde_json::json;

use crate::args::{Check, Common};
use crate::context::{file_text, read_text};
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) fn run(common: &Common, args: &Check) -> Result<ExitCode, Failure> {
    let text = file_text(&common.file)?;
    let reading = read_text(&common.file, &text);
    let errors = reading.diagnostics.iter().filter(|d| d.severity == Severity::Error).count();
    let warnings = reading.diagnostics.len() - errors;
    let name = common.file.display().to_string();
    // The exit code does not depend on what is shown.
    let reading = if common.quiet { reading.errors_only() } else { reading };
    if args.json {
        let mut value = json!({ "file": name, "valid": errors == 0, "errors": errors, "warnings": warnings,
                            "diagnostics": reading.diagnostics });
        if !reading.timings.is_empty() {
            value["postgres"] = json!(reading.timings);
        }
        view::print_json(&value)?;
    } else {
        view::print(&reading.render(&name, &text, Paint::of_stdout().on()));
        view::print(&view::timings(reading.timings.iter().map(|(name, timing)| (name.as_str(), timing))));
        let spec = reading.spec.as_ref();
        let clusters = spec.map_or(0, |s| s.etcd.len());
        match (errors, warnings) {
            (0, 0) => view::print(&format!("{name}: valid, {clusters} etcd cluster{}\n", plural(clusters))),
            (0, w) => view::print(&format!("{name}: valid, with {w} warning{}\n", plural(w))),
            (e, w) => {
                view::print(&format!("{name}: {e} error{}, {w} warning{}\n", plural(e), plural(w)));
            }
        }
    }
    if errors > 0 || (args.strict && warnings > 0) { Err(Failure::said()) } else { Ok(OK) }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
