//! The findings about an adopted cluster → the text of `raftsman adopt`.

use raftsman_core::adopt::{Finding, Member, Weight};
use raftsman_core::observed::Purpose;
use raftsman_engine::ops::adopt::Adoption;

use super::{Paint, Table, bytes};

/// The whole report.
pub(crate) fn render(adoption: &Adoption, paint: Paint) -> String {
    let found = &adoption.found;
    let auth = match found.auth {
        Some(true) => format!("users by {}", found.mode),
        Some(false) => "auth off".to_owned(),
        None => "auth unknown".to_owned(),
    };
    let mut out = format!("{} id {}, {auth}\n", paint.bold("etcd cluster"), found.cluster);
    let mut table = Table::indented(2);
    table.row(
        ["MEMBER", "CLIENTS", "PEERS", "VERSION", "DB", "REVISION", "CERTIFICATES END", "FLAGS"].map(|h| paint.dim(h)),
    );
    for member in &found.members {
        table.row(row(member));
    }
    out.push_str(&table.render());
    if let Ok(access) = &found.access {
        let names = |names: Vec<&String>| match names.len() {
            0 => "none".to_owned(),
            _ => names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        };
        out.push_str(&format!("  users: {}\n", names(access.users.keys().collect())));
        out.push_str(&format!("  roles: {}\n", names(access.roles.keys().collect())));
    }
    let agree = |n: usize| format!("  data: {n} members agree at revision {}\n", found.hashes.revision);
    if !found.hashes.members.is_empty() && !adoption.findings.iter().any(|f| f.code == "hash-differs") {
        out.push_str(&agree(found.hashes.members.len()));
    }
    out.push('\n');
    for finding in &adoption.findings {
        out.push_str(&described(finding, paint));
    }
    if adoption.findings.is_empty() {
        out.push_str("No problems found.\n");
    }
    let file = adoption.file.display();
    out.push_str(&match adoption.state {
        true => format!("\nwrote {file}, and made the state beside it; in the cluster nothing was changed\nnext: raftsman plan, raftsman status\n"),
        false => format!("\nwrote {file}; in the cluster nothing was changed\nThis version cannot use the file yet: see the problems above, and `raftsman check`.\n"),
    });
    out
}

fn row(member: &Member) -> [String; 8] {
    let dash = || "-".to_owned();
    let place = |url: &str| url.trim_start_matches("https://").to_owned();
    let status = member.status.as_ref().ok();
    let end = |purpose| {
        let seen = member.certificates.get(&purpose).and_then(|seen| seen.as_ref().ok());
        seen.map_or_else(dash, |certificate| certificate.not_after.strftime("%Y-%m-%d").to_string())
    };
    [
        member.listed.name.clone(),
        place(&member.endpoint),
        member.listed.peer_urls.first().map_or_else(dash, |url| place(url)),
        status.map_or_else(dash, |s| s.version.to_string()),
        status.map_or_else(dash, |s| bytes(s.db_size)),
        status.map_or_else(dash, |s| s.revision.to_string()),
        format!("{} {}", end(Purpose::Server), end(Purpose::Peer)),
        member.process.as_ref().map_or_else(|| "not seen".to_owned(), |process| process.source.clone()),
    ]
}

fn described(finding: &Finding, paint: Paint) -> String {
    let word = match finding.weight {
        Weight::Problem => paint.red("problem:"),
        Weight::Warning => paint.yellow("warning:"),
        Weight::Note => paint.dim("note:"),
    };
    let whose = finding.member.as_ref().map(|member| format!("{member}: ")).unwrap_or_default();
    let next = finding.next.replace('\n', "\n      ");
    format!("  {word} {whose}{}\n    → {next}\n", finding.message)
}
