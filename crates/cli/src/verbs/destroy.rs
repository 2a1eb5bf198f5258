//! `raftsman destroy`.

use std::process::ExitCode;

use raftsman_core::spec::{EtcdCluster, Name, Path, Spec, line_of};
use raftsman_engine::ops::destroy::{Destruction, destroy, survey};

use super::{asked, plan::state};
use crate::args::{Common, Destroy};
use crate::exit::{Failure, OK};
use crate::setting::{begin, clusters, file_text, open_locked, read_file, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Destroy) -> Result<ExitCode, Failure> {
    let mut spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let setting = setting(common)?;
    if state(&spec, &setting)?.is_none() {
        raftsman_engine::store::Store::remove_unfinished(&setting.state_dir(&spec))?;
        view::print("there is nothing to destroy\n");
        return Ok(OK);
    }
    allowed(common, &spec, &only)?;
    // What the fleet has counts, not what the file would rather have.
    spec.machines.network = None;
    let lock = begin(&spec, &setting, "destroy")?.lock;
    let fleet = open_locked(spec, setting, &lock)?;
    let what = survey(&fleet, &only).await?;
    view::print(&announce(&what, Paint::of_stdout()));
    let (whose, name) = match what.clusters.as_slice() {
        [cluster] if !what.state => ("cluster", cluster.clone()),
        _ => ("fleet", fleet.spec.fleet.clone()),
    };
    let question = format!("\nThere is no way back. Type the {whose}'s name to go on: ");
    if !args.yes && asked(&question).as_deref() != Some(name.as_str()) {
        return Err(Failure::other(format!("nothing was destroyed: type the {whose}'s name, or give --yes")));
    }
    let done = destroy(fleet, lock, what, &|machine| view::print(&format!("{machine} is gone\n"))).await?;
    for left in &done.left {
        view::print(&format!("left, because raftsman did not make it: {}\n", left.display()));
    }
    view::print("done\n");
    Ok(OK)
}

/// Whether the file lets these clusters go.
fn allowed(common: &Common, spec: &Spec, only: &[Name]) -> Result<(), Failure> {
    let kept =
        |(name, cluster): &(&Name, &EtcdCluster)| cluster.prevent_destroy && (only.is_empty() || only.contains(name));
    let Some((name, _)) = spec.etcd.iter().find(kept) else { return Ok(()) };
    let path = Path::of(&["etcd", name.as_str(), "prevent_destroy"]);
    let line = line_of(&file_text(&common.file)?, &path).map(|line| format!(":{line}")).unwrap_or_default();
    Err(Failure::other(format!(
        "`prevent_destroy: true` in {}{line} keeps cluster `{name}`: nothing was destroyed; remove that line if it is to go",
        common.file.display()
    )))
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
