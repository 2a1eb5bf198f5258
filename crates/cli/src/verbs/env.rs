//! `raftsman env`.

use std::path::Path;
use std::process::ExitCode;

use raftsman_engine::ops::env::{Settings, env};

use crate::args::{Common, Env};
use crate::context::{context, open, read_file};
use crate::exit::{Failure, OK};
use crate::view;

pub(super) async fn run(common: &Common, args: &Env) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let fleet = open(spec, context(common)?).await?;
    let settings = env(&fleet, args.cluster.as_deref(), args.via.as_deref()).await?;
    if args.json {
        view::print_json(&settings)?;
    } else {
        view::print(&shell(&settings));
    }
    Ok(OK)
}

/// Lines for a shell. A password is never among them: the shell reads it from its file.
fn shell(settings: &Settings) -> String {
    let mut out = format!("export ETCDCTL_API=3\nexport ETCDCTL_ENDPOINTS={}\n", settings.endpoints.join(","));
    let mut file = |name: &str, path: &Path| out.push_str(&format!("export {name}={}\n", quoted(path)));
    file("ETCDCTL_CACERT", &settings.ca);
    if let (Some(certificate), Some(key)) = (&settings.certificate, &settings.key) {
        file("ETCDCTL_CERT", certificate);
        file("ETCDCTL_KEY", key);
    }
    if let (Some(user), Some(password)) = (&settings.user, &settings.password_file) {
        out.push_str(&format!("export ETCDCTL_USER={user}\nexport ETCDCTL_PASSWORD=\"$(cat {})\"\n", quoted(password)));
    }
    out
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}
