//! `raftsman env`.

use std::path::Path;
use std::process::ExitCode;

use raftsman_engine::ops::env::{PostgresSettings, Settings, env, of_postgres};

use crate::args::{Common, Env};
use crate::context::{context, open, read_file};
use crate::exit::{Failure, OK};
use crate::view;

pub(super) async fn run(common: &Common, args: &Env) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let fleet = open(spec, context(common)?).await?;
    if let Some(settings) = of_postgres(&fleet, args.cluster.as_deref(), args.via.as_deref()).await? {
        match args.json {
            true => view::print_json(&settings)?,
            false => view::print(&libpq(&settings)),
        }
        return Ok(OK);
    }
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

/// Lines for a shell, by which programs of libpq find the node that takes writes and check its certificate.
fn libpq(settings: &PostgresSettings) -> String {
    let hosts: Vec<String> = settings.hosts.iter().map(ToString::to_string).collect();
    format!(
        "export PGHOST={}\nexport PGPORT={}\nexport PGSSLMODE=verify-full\nexport PGSSLROOTCERT={}\n\
         export PGTARGETSESSIONATTRS=read-write\n",
        hosts.join(","),
        settings.port,
        quoted(&settings.ca)
    )
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}
