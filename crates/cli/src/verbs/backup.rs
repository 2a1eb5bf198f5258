//! `raftsman backup now`, `list`, `show`, `copy`, `verify`, `prune` and `key`.

use std::process::ExitCode;

use raftsman_engine::backup::{Accepted, keys};
use raftsman_engine::fleet::directory_of;
use raftsman_engine::ops::OpError;
use raftsman_engine::ops::backup::{Selection, Target, copy, keys as verifying_keys, list, now, prune, show, verify};
use serde_json::json;

use crate::args::{Accept, Backup, Common, Unsigned};
use crate::context::{context, open, read_file, read_spec};
use crate::exit::{Failure, OK};
use crate::transfer::TransferView;
use crate::view::{self, Paint};

/// What `--trust` and `--trust-unsigned` say.
pub(super) fn accepted(accept: &Accept) -> Result<Accepted, Failure> {
    let parse = |key: &String| {
        let wrong = |_| Failure::other(format!("`{key}` is no key of a fleet: `raftsman backup key` prints it there"));
        key.parse().map_err(wrong)
    };
    let keys = accept.trust.iter().map(parse).collect::<Result<_, _>>()?;
    Ok(Accepted { keys, ..unsigned(&accept.unsigned) })
}

fn unsigned(accept: &Unsigned) -> Accepted {
    Accepted { unsigned: accept.trust_unsigned, ..Accepted::default() }
}

pub(super) async fn run(common: &Common, args: &Backup) -> Result<ExitCode, Failure> {
    let fleet = async || -> Result<_, Failure> { open(read_file(common)?, context(common)?).await };
    match args {
        Backup::Now { cluster, json } => {
            let (spec, context) = (read_file(common)?, context(common)?);
            let transfer = TransferView::new(*json);
            let on_progress = |progress| transfer.on_progress(progress);
            let taken = Box::pin(now(spec, &context, cluster.as_deref(), &on_progress)).await;
            transfer.end();
            let taken = taken?;
            match json {
                true => view::print_json_line(&json!({ "event": "backed_up", "backup": taken })),
                false => view::print(&view::backup::taken(&taken, Paint::of_stdout())),
            }
        }
        Backup::List { cluster, unsigned: accept, json } => {
            let listing = list(&fleet().await?, cluster.as_deref(), &unsigned(accept)).await?;
            match json {
                true => view::print_json(&listing)?,
                false => view::print(&view::backup::listing(&listing, jiff::Timestamp::now(), Paint::of_stdout())),
            }
        }
        Backup::Show { backup, cluster, unsigned: accept, json } => {
            let accepted = unsigned(accept);
            let shown = show(&fleet().await?, cluster.as_deref(), backup.as_deref(), &accepted).await?;
            match json {
                true => view::print_json(&shown)?,
                false => view::print(&view::backup::shown(&shown, Paint::of_stdout())),
            }
        }
        Backup::Copy { backup, to, to_store_of, snapshot, cluster, key, unsigned: accept, json } => {
            let accepted = unsigned(accept);
            let keys = keys(key).map_err(OpError::from)?;
            let other = to_store_of.as_deref().map(|file| Ok::<_, Failure>((file, read_spec(file)?))).transpose()?;
            let target = match (to, &other, snapshot) {
                (Some(directory), ..) => Target::Directory(directory),
                (_, Some((file, spec)), _) => {
                    let none = || Failure::other(format!("{} configures no backup store", file.display()));
                    Target::Store { settings: spec.backups.as_ref().ok_or_else(none)?, base: directory_of(file) }
                }
                (.., Some(file)) if file.exists() => {
                    return Err(Failure::other(format!("{} is there already: name a new file", file.display())));
                }
                (.., Some(file)) => Target::File(file),
                (None, None, None) => return Err(Failure::other("say where to: see `raftsman backup copy --help`")),
            };
            let transfer = TransferView::new(*json);
            let on_progress = |progress| transfer.on_progress(progress);
            let copied =
                copy(&fleet().await?, cluster.as_deref(), backup.as_deref(), target, &accepted, &keys, &on_progress)
                    .await;
            transfer.end();
            let copied = copied?;
            match json {
                true => view::print_json_line(&json!({ "event": "copied", "copy": copied })),
                false => view::print(&view::backup::copied(&copied, Paint::of_stdout())),
            }
        }
        Backup::Verify { backup, all, cluster, key, unsigned: accept, json } => {
            let accepted = unsigned(accept);
            let keys = keys(key).map_err(OpError::from)?;
            let selection = match backup {
                Some(name) => Selection::Named(name),
                None if *all => Selection::All,
                None => Selection::Newest,
            };
            let transfer = TransferView::new(*json);
            let on_progress = |progress| transfer.on_progress(progress);
            let verified = verify(&fleet().await?, cluster.as_deref(), selection, &accepted, &keys, &on_progress).await;
            transfer.end();
            let verified = verified?;
            match json {
                true => view::print_json_line(&json!({ "event": "verified", "backups": verified })),
                false => view::print(&view::backup::verified(&verified, Paint::of_stdout())),
            }
            if verified.iter().any(|one| one.verdict == "damaged") {
                return Ok(ExitCode::FAILURE);
            }
        }
        Backup::Prune { cluster, show, unsigned: accept, json } => {
            let (spec, context) = (read_file(common)?, context(common)?);
            let accepted = unsigned(accept);
            let pruned = Box::pin(prune(spec, &context, cluster.as_deref(), &accepted, *show)).await?;
            match json {
                true => view::print_json(&pruned)?,
                false => view::print(&view::backup::pruned(&pruned, Paint::of_stdout())),
            }
        }
        Backup::Key { json } => {
            let keys = verifying_keys(&fleet().await?).await?;
            match json {
                true => view::print_json(&json!({ "keys": keys }))?,
                false => view::print(&view::backup::keys(&keys)),
            }
        }
    }
    Ok(OK)
}
