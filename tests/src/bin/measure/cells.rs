//! Operations × faults, the verdict on each cell → a table, and whether all are green.

use std::fmt::Write as _;

pub(crate) fn table(operations: &[&str], faults: &[&str], results: &[(&str, &str, bool)]) -> (String, bool) {
    let green = results.iter().filter(|(.., green)| *green).count();
    let mut out = format!("{green} of {} cells green.\n\n| operation |", results.len());
    for fault in faults {
        let _ = write!(out, " {fault} |");
    }
    let _ = writeln!(out, "\n|---|{}", "---|".repeat(faults.len()));
    for operation in operations {
        let _ = write!(out, "| {operation} |");
        for fault in faults {
            let of = results.iter().filter(|(o, f, _)| (o, f) == (operation, fault));
            let (all, green) = (of.clone().count(), of.filter(|(.., green)| *green).count());
            let _ = if all == 0 { write!(out, " - |") } else { write!(out, " {green}/{all} |") };
        }
        out.push('\n');
    }
    (out, green == results.len())
}
