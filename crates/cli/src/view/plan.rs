//! A forecast → the text of `raftsman plan`.

use raftsman_core::action::{Action, EtcdAction, StartData};
use raftsman_core::observed::{Copies, Tolerance};
use raftsman_core::plan::{Considered, CopiesLeft, Outcome, Pause, Step};
use raftsman_engine::ops::plan::{ClusterPlan, ConfigDiff, Deletion, FleetPlan};

use super::{Paint, Table, preflight, tolerance, tolerances};

/// The whole text.
pub(crate) fn render(plan: &FleetPlan, paint: Paint) -> String {
    let mut out = String::new();
    for cluster in &plan.clusters {
        out.push_str(&one(cluster, paint));
        out.push('\n');
    }
    for silent in &plan.provider_unreachable {
        out.push_str(&format!("{} {silent}\n", paint.yellow("provider:")));
    }
    if !plan.unnamed_machines.is_empty() {
        let names = plan.unnamed_machines.join(", ");
        out.push_str(&format!(
            "{} machines of this fleet that the file does not name, left alone: {names}\n\n",
            paint.yellow("note:")
        ));
    }
    for unmet in &plan.unmet {
        let whose = unmet.cluster.as_ref().map(|cluster| format!("{cluster}: ")).unwrap_or_default();
        out.push_str(&format!("{} {whose}{}\n", paint.red("blocked:"), unmet.message));
    }
    out.push_str(&deletions(plan, paint));
    out.push_str(&summary(plan, paint));
    out
}

/// What is deleted permanently, in one line: `2 deletions: user alice, machine main-2`.
fn deletions(plan: &FleetPlan, paint: Paint) -> String {
    let several = plan.clusters.len() > 1;
    let name = |deletion: &Deletion| match several {
        true => format!("{} of {}", deletion.what, deletion.cluster),
        false => deletion.what.clone(),
    };
    let names: Vec<String> = plan.deletions.iter().map(name).collect();
    let count = match names.len() {
        0 => return String::new(),
        1 => "1 deletion:".to_owned(),
        n => format!("{n} deletions:"),
    };
    format!("{} {}\n", paint.red(&count), names.join(", "))
}

fn one(plan: &ClusterPlan, paint: Paint) -> String {
    let forecast = &plan.forecast;
    let members = if plan.members == 1 { "1 member".to_owned() } else { format!("{} members", plan.members) };
    let name = paint.bold(&format!("etcd {}", plan.cluster));
    let mut out = format!("{name}   {members}, {}, {}\n", plan.version, tolerances(forecast.now, plan.zones.as_ref()));
    if let Some(kept) = &plan.preflight {
        out.push_str(&preflight::line(kept, plan.timers, plan.timers_by_measurement, paint));
    }
    let mut table = Table::indented(2);
    for (number, wave) in forecast.waves.iter().enumerate() {
        for (index, row) in grouped(&wave.steps).into_iter().enumerate() {
            let number = if index == 0 { (number + 1).to_string() } else { String::new() };
            let [who, verb, why, cost, pause] = cells(&row, paint);
            table.row([number, who, verb, why, cost, pause]);
        }
    }
    out.push_str(&table.render());
    if let Some(ms) = plan.stop_held_ms {
        let held =
            format!("each member that is stopped waits for clients that watch, {} s at most\n", ms.div_ceil(1000));
        out.push_str(&format!("  {} {held}", paint.dim("note:")));
    }
    for changed in plan.diffs.iter().flatten() {
        out.push_str(&diff(changed, paint));
    }
    if let Some(considered) = &plan.considered {
        out.push_str(&decided(considered, paint));
    }
    for waiting in &forecast.waiting {
        let label = paint.kind(waiting.kind());
        out.push_str(&format!("  {label} {waiting}\n    → {}\n", waiting.next()));
    }
    if forecast.waves.is_empty() && forecast.converges {
        out.push_str(&format!("  {}\n", paint.green("as it should be")));
    }
    out
}

/// The planner's passes in order, and the result of each.
fn decided(considered: &[Considered], paint: Paint) -> String {
    let mut table = Table::indented(4);
    for Considered { about, outcome } in considered {
        let described: Vec<String> = match outcome {
            Outcome::Nothing => vec![paint.dim("nothing to do")],
            Outcome::Left { because } => vec![paint.dim(&format!("skipped: {because}"))],
            Outcome::Found { steps, waiting } => {
                let steps = steps.iter().map(|step| format!("{}: {}", step.action.describe(), step.reason));
                let waits = waiting.iter().map(|waiting| format!("{} {waiting}", paint.kind(waiting.kind())));
                steps.chain(waits).collect()
            }
        };
        for (index, line) in described.into_iter().enumerate() {
            table.row([if index == 0 { (*about).to_owned() } else { String::new() }, line]);
        }
    }
    format!("  how the next wave was decided:\n{}", table.render())
}

fn diff(changed: &ConfigDiff, paint: Paint) -> String {
    let names: Vec<&str> = changed.machines.iter().map(|name| name.as_str()).collect();
    let mut out = format!("  {}: {}\n", names.join(", "), changed.file);
    for line in changed.diff.lines() {
        let shown = match line.chars().next() {
            Some('-') => paint.red(line),
            Some('+') => paint.green(line),
            _ => line.to_owned(),
        };
        out.push_str(&format!("    {shown}\n"));
    }
    out
}

/// Steps of one wave that differ in their machine only: one row.
struct Row<'a> {
    steps: Vec<&'a Step>,
}

fn grouped(steps: &[Step]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for step in steps {
        let same = |row: &&mut Row<'_>| {
            let first = row.steps[0];
            let alike = first.action.verb() == step.action.verb() && first.reason == step.reason;
            alike && first.during == step.during && first.copies == step.copies
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.steps.push(step),
            None => rows.push(Row { steps: vec![step] }),
        }
    }
    rows
}

fn cells(row: &Row<'_>, paint: Paint) -> [String; 5] {
    let first = row.steps[0];
    let names: Vec<&str> = row.steps.iter().map(|s| s.action.subject()).collect();
    let who = match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [one, .., last] => format!("{one} … {last} ({})", names.len()),
    };
    let why = match &first.action {
        Action::Etcd(EtcdAction::StartEtcd { data: StartData::Empty, .. }) => first.reason.to_string(),
        Action::Etcd(EtcdAction::InstallEtcd { version, .. }) => format!("{version}"),
        _ => first.reason.to_string(),
    };
    let cost = match (first.before, first.during, first.after) {
        (before, during, after) if before == during && during == after => tolerance(before),
        (before, during, after) if before == during => format!("{} → {}", tolerance(before), brief(after)),
        (before, during, after) => format!("{} → {} → {}", tolerance(before), brief(during), brief(after)),
    };
    let cost = [Some(cost), first.copies.map(copies)].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let pause = match first.pause {
        Pause::HandOver(ms) | Pause::Patroni(ms) => paint.yellow(&format!("pause ~{ms} ms")),
        Pause::None | Pause::NotServing => String::new(),
    };
    [who, first.action.verb().to_owned(), why, paint.dim(&cost), pause]
}

fn brief(of: Tolerance) -> String {
    match of {
        Tolerance::NoQuorum => "none".to_owned(),
        Tolerance::CanLose(n) => n.to_string(),
    }
}

/// On how many standbys every acknowledged commit of a PostgreSQL cluster is: before, during and after.
pub(super) fn copies(of: CopiesLeft) -> String {
    let count = |copies: Copies| match copies {
        Copies::NotWritable => "no writes".to_owned(),
        Copies::Synchronous(copies) => copies.to_string(),
    };
    let CopiesLeft { before, during, after } = of;
    match (before, during, after) {
        (before, during, after) if before == during && during == after => format!("copies {}", count(before)),
        (before, during, after) => format!("copies {} → {} → {}", count(before), count(during), count(after)),
    }
}

fn summary(plan: &FleetPlan, paint: Paint) -> String {
    let steps: usize = plan.clusters.iter().map(|c| c.forecast.steps().count()).sum();
    let pause = plan.clusters.iter().map(|c| c.forecast.longest_pause()).max().unwrap_or(Pause::None);
    let pause = match pause {
        Pause::HandOver(ms) | Pause::Patroni(ms) => format!("Longest write pause expected: {ms} ms."),
        Pause::None | Pause::NotServing => "No write pause expected.".to_owned(),
    };
    let stuck = plan.clusters.iter().filter(|c| !c.forecast.converges).count();
    let ending = match stuck {
        0 => String::new(),
        n => paint.yellow(&format!(" {n} of {} clusters will not converge by this alone.", plan.clusters.len())),
    };
    let serving = |step: &Step| step.before != Tolerance::NoQuorum;
    let stops = |step: &&Step| serving(step) && step.during == Tolerance::NoQuorum;
    if plan.clusters.iter().any(|c| c.forecast.steps().find(stops).is_some()) {
        return format!(
            "{steps} steps. Clients are denied from the first step that stops a member to the last.{ending}\n"
        );
    }
    if !plan.unmet.is_empty() {
        let missing = match plan.unmet.len() {
            1 => "something that it needs is missing".to_owned(),
            n => format!("{n} things that it needs are missing"),
        };
        let begins = match steps {
            0 => "`apply` would do nothing".to_owned(),
            1 => "1 step, which `apply` would not begin".to_owned(),
            n => format!("{n} steps, none of which `apply` would begin"),
        };
        return format!("{begins}: {missing}, see above.\n");
    }
    match steps {
        0 if stuck == 0 => "Nothing to do.\n".to_owned(),
        0 => format!("Nothing can be done now.{ending}\n"),
        1 => format!("1 step. It does not lose quorum. {pause}{ending}\n"),
        n => format!("{n} steps. No step loses quorum. {pause}{ending}\n"),
    }
}
