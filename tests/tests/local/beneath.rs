//! PostgreSQL by hand on an etcd that raftsman maintains → what its clients notice of raftsman's work beneath them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use raftsman_tests::files::write_private;
use raftsman_tests::lab::{Lab, etcdctl, eventually, kill};
use raftsman_tests::postgres::bare::ETCD_LINES;
use raftsman_tests::postgres::{BarePostgres, Dcs, Ledger, Timers, Watch};
use rustix::process::Signal;
use serde_json::{Map, Value};

/// The longest time between two acknowledged writes of a client. Clients noticed 54 to 130 ms of such work, and 42 to 56 ms
/// of none, on two busy cores. A demotion costs more than four seconds: this tells the two apart.
const NOTICED: Duration = Duration::from_secs(3);

/// etcd's user and role for Patroni are in the file. Patroni's timers are the shortest: with others, less is noticed.
#[test]
fn no_primary_is_demoted_by_work_on_the_etcd_beneath() {
    let lab = Lab::cluster(3, "3.6.14", &ETCD_LINES);
    Dcs::prepare(&lab);
    lab.apply();
    let postgres = BarePostgres::up(&Dcs::of(&lab), Timers::SHORTEST);
    let before = postgres.settled();
    let (watch, ledger) = (Watch::start(postgres.clients()), Ledger::start(postgres.clients(), 2));

    // Every member restarts for another setting, then for another version; then one gets a new machine and new data.
    lab.write_file(&format!("{}    quota: 3GiB\n", lab.file()));
    let plan = lab.run(&["plan"]).ok().stdout;
    assert!(plan.contains("each member that is stopped waits for clients that watch, 7 s at most"), "{plan}");
    lab.apply();
    ledger.await_writes(20);
    lab.write_file(&lab.file().replace("version: 3.6.14", "version: 3.6.15"));
    lab.apply();
    ledger.await_writes(20);
    lab.run(&["replace", "main-2", "--yes"]).ok();
    lab.apply();
    ledger.await_writes(20);

    let after = postgres.settled();
    let (accounts, seen) = (ledger.finish(), watch.finish());
    println!("{accounts:?}\n{seen:?}");
    let logs: Vec<String> = (0..postgres.nodes()).map(|index| postgres.log(index)).collect();
    let logs = || logs.join("\n");
    assert_eq!(accounts.lost, [] as [String; 0], "acknowledged and not there\n{}", logs());
    assert_eq!(seen.two_primaries, [], "two nodes took writes at once\n{}", logs());
    assert_eq!(postgres.demotions(), 0, "{}", logs());
    assert_eq!((after.primary, after.timeline), (before.primary, before.timeline), "{}", logs());
    assert_eq!(seen.primaries, [postgres.name(before.primary)], "{}", logs());
    assert!(accounts.longest_gap < NOTICED && accounts.errors.is_empty(), "{accounts:?}\n{}", logs());

    // What does demote a primary is counted: another password of Patroni's user, which Patroni was not told.
    write_private(lab.path().join("patroni.password"), "another-secret-0123456789");
    lab.apply();
    eventually("the primary is demoted", || (postgres.demotions() > 0).then_some(()));
    drop(postgres);
    lab.destroy();
}

/// A member with the JSON gateway, which Patroni needs, does not end while clients watch: it closes its listeners, votes on,
/// and waits for its clients' streams for 5 s and twice its election timeout (`ReqTimeout`, in `embed.Etcd.Close`).
#[test]
fn a_member_waits_for_watches_before_it_ends() {
    let lab = Lab::cluster(1, "3.6.15", &["auth: { mode: password }"]);
    lab.apply();
    let env = lab.run(&["env", "main"]).ok().stdout;
    let mut took = Vec::new();
    for watched in [false, true] {
        let script = format!("{env}\nexec \"$ETCDCTL\" watch a");
        let mut watch = Command::new("sh");
        watch.args(["-c", &script]).env("ETCDCTL", etcdctl()).stdin(Stdio::null()).stdout(Stdio::null());
        let watch = watched.then(|| watch.stderr(Stdio::null()).spawn().expect("a shell"));
        std::thread::sleep(Duration::from_secs(2));
        let (_, pid) = lab.etcds().pop().expect("etcd runs");
        let begun = Instant::now();
        kill(pid, Signal::TERM);
        eventually("it ends", || lab.etcds().iter().all(|(_, running)| *running != pid).then_some(()));
        took.push(begun.elapsed());
        println!("{} ms from SIGTERM to the end, watched: {watched}", begun.elapsed().as_millis());
        if let Some(mut watch) = watch {
            let _ = watch.kill();
            let _ = watch.wait();
        }
        // Its agent starts it again.
        eventually("it serves again", || (lab.run(&["status"]).code == 0).then_some(()));
    }
    assert!(
        took[0] < Duration::from_secs(5) && took[1] >= Duration::from_secs(5),
        "docs/reference/figures.md: {took:?}"
    );
    lab.destroy();
}

/// Everything that Patroni keeps in etcd, by key.
fn keys(lab: &Lab) -> Value {
    let found = lab.etcdctl(&["get", "--prefix", "/service/pg/", "--write-out", "json"]).ok().json();
    let text = |value: &Value| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap_or_default());
        String::from_utf8(bytes.expect("base64")).expect("text")
    };
    let keys = found["kvs"].as_array().expect("keys").iter();
    let keys = keys.map(|key| {
        let entry = serde_json::json!({ "value": text(&key["value"]), "mod_revision": key["mod_revision"] });
        (text(&key["key"]), entry)
    });
    Value::Object(keys.collect::<Map<String, Value>>())
}

/// `just record-patroni`: what core's parsers are tested with, in `crates/core/tests/patroni`.
#[test]
#[ignore = "writes files of the repository"]
fn record_what_patroni_answers() {
    let lab = Lab::cluster(3, "3.6.15", &ETCD_LINES);
    Dcs::prepare(&lab);
    lab.apply();
    let mut postgres = BarePostgres::up(&Dcs::of(&lab), Timers::SHORTEST);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/core/tests/patroni");
    let write = |name: &str, value: &Value| {
        let text = serde_json::to_string_pretty(value).expect("JSON") + "\n";
        std::fs::write(dir.join(format!("{name}.json")), text).expect("a file");
    };
    let get = |postgres: &BarePostgres, node: usize, path: &str| -> Option<Value> {
        let (_, text) = postgres.rest(node, "GET", path, "").ok()?;
        serde_json::from_str(&text).ok()
    };

    // A second timeline, so that there is a history.
    let settled = postgres.switchover();
    let replica = 3 - settled.primary - settled.standby;
    // A node says so itself once it has seen the key `/sync` in a round of its own.
    let standby = eventually("the standby knows that it is synchronous", || {
        get(&postgres, settled.standby, "/patroni").filter(|answer| answer["sync_standby"] == true)
    });
    write("patroni-sync-standby", &standby);
    for (name, node) in [("primary", settled.primary), ("replica", replica)] {
        write(&format!("patroni-{name}"), &get(&postgres, node, "/patroni").expect("an answer"));
    }
    for path in ["cluster", "config", "history"] {
        write(path, &get(&postgres, settled.primary, &format!("/{path}")).expect("an answer"));
    }
    write("keys", &keys(&lab));

    postgres.rest(settled.primary, "PATCH", "/config", r#"{"pause": true}"#).expect("an answer");
    let paused = eventually("every node knows of the pause", || {
        let answers: Option<Vec<Value>> = (0..3).map(|node| get(&postgres, node, "/patroni")).collect();
        answers.filter(|all| all.iter().all(|answer| answer["pause"] == true))
    });
    write("patroni-primary-paused", &paused[settled.primary]);
    write("cluster-paused", &get(&postgres, settled.primary, "/cluster").expect("an answer"));
    write("keys-paused", &keys(&lab));
    postgres.rest(settled.primary, "PATCH", "/config", r#"{"pause": null}"#).expect("an answer");

    // It starts within moments: it may take several times until it is seen.
    let starting = eventually("a node that starts answers", || {
        postgres.kill(replica);
        postgres.start(replica);
        loop {
            match get(&postgres, replica, "/patroni") {
                Some(answer) if answer["state"] == "starting" => return Some(answer),
                Some(answer) if answer["state"] == "running" => return None,
                Some(answer) => write(&format!("patroni-{}", answer["state"].as_str().unwrap_or_default()), &answer),
                None => {}
            }
        }
    });
    write("patroni-starting", &starting);
    write("cluster-starting", &get(&postgres, settled.primary, "/cluster").expect("an answer"));
    drop(postgres);
    lab.destroy();
}
