//! `raftsman destroy`.

use std::process::ExitCode;

use raftsman_engine::ops::apply::begin;
use raftsman_engine::ops::destroy::{Destruction, destroy, survey};

use super::{confirmed, plan::is_new};
use crate::args::{Common, Destroy};
use crate::exit::{Failure, OK};
use crate::setting::{clusters, open, read_file, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Destroy) -> Result<ExitCode, Failure> {
    let mut spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let setting = setting(common)?;
    if is_new(&spec, &setting)? {
        raftsman_engine::store::Store::remove_unfinished(&setting.state_dir(&spec))?;
        view::print("there is nothing to destroy\n");
        return Ok(OK);
    }
    // What the fleet has counts, not what the file would rather have.
    spec.machines.network = None;
    let (_, lock) = begin(&spec, &setting, "destroy")?;
    let fleet = open(spec, setting)?;
    let what = survey(&fleet, &only).await?;
    view::print(&announce(&what, Paint::of_stdout()));
    if !args.yes && !confirmed("\nDestroy all of this? There is no way back. [y/N] ") {
        return Err(Failure::other("nothing was destroyed: answer `yes`, or give --yes"));
    }
    let done = destroy(fleet, lock, what, &|machine| view::print(&format!("{machine} is gone\n"))).await?;
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
