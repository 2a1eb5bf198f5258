//! `raftsman destroy`.

use std::process::ExitCode;

use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::destroy::{Destruction, run as destroy};

use super::asked;
use crate::args::{Common, Destroy};
use crate::context::{clusters, context, read_file};
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Destroy) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let context = context(common)?;
    let fleet = spec.fleet.clone();
    let approve = |what: &Destruction| {
        let (whose, name) = match what.clusters.as_slice() {
            [cluster] if !what.state => ("cluster", cluster),
            _ => ("fleet", &fleet),
        };
        let question = format!("\nThis cannot be undone. Type the {whose}'s name to continue: ");
        match args.yes || asked(&question).as_deref() == Some(name.as_str()) {
            true => Ok(()),
            false => Err(format!("nothing was destroyed: type the {whose}'s name, or give --yes")),
        }
    };
    let show = |what: &Destruction| view::print(&announce(what, Paint::of_stdout()));
    let consent = Consent { show: &show, approve: &approve };
    let gone = |machine: &str| view::print(&format!("{machine} is gone\n"));
    let Some(done) = Box::pin(destroy(spec, &context, &only, consent, &gone)).await? else {
        view::print("there is nothing to destroy\n");
        return Ok(OK);
    };
    for left in &done.left {
        view::print(&format!("left, because raftsman did not make it: {}\n", left.display()));
    }
    view::print("done\n");
    Ok(OK)
}

fn announce(what: &Destruction, paint: Paint) -> String {
    let names: Vec<String> = what.clusters.iter().map(ToString::to_string).collect();
    let machines = if what.machines.is_empty() { "none".to_owned() } else { what.machines.join(", ") };
    let mut out = format!("{} clusters: {}\n", paint.red("to be destroyed:"), names.join(", "));
    out.push_str(&format!("  machines with their data: {machines}\n"));
    if what.state {
        out.push_str("  the state: certificate authorities, passwords, journal\n");
    }
    out
}
