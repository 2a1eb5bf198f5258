//! A file with a PostgreSQL cluster → a stack on this computer: brought up, used by clients, changed, and gone again.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, etcd_dir, eventually, soak};
use raftsman_tests::partition::{self, Groups};
use raftsman_tests::postgres::bare::postgres_dir;
use raftsman_tests::postgres::operations::Operation;
use raftsman_tests::postgres::{Ledger, Stack, Watch, file, forks, psql, write_password};

#[test]
fn a_stack_is_brought_up_changed_beneath_and_above_and_destroyed() {
    let lab = Lab::new(&file(""));
    write_password(&lab, "shop", None);
    lab.apply();
    lab.nothing_to_do();
    let superuser = |_: &str, statement: &str| psql(&lab, statement);
    let stack = Stack { lab: &lab, superuser: &superuser };
    assert_eq!(stack.ask("select current_setting('max_connections')"), "50");
    let clients = stack.clients("db");
    let (watch, ledger) = (Watch::start(&clients), Ledger::start(&clients, 2));

    only_the_role_gets_in(&lab);
    the_balancer_leads_by_role(&lab);
    the_certificate_of_the_balancer_only_reads(&lab);
    roles_and_databases_are_those_of_the_file(&stack);
    nodes_get_another_password(&stack);

    // Beneath: every member restarts. Above: nodes restart for a parameter, raised and lowered.
    stack.change("    auth: { mode: password }\n", "    auth: { mode: password }\n    quota: 3GiB\n");
    ledger.await_writes(20);
    for (from, to) in [("50", "70"), ("70", "40")] {
        stack.change(&format!("max_connections: {from}"), &format!("max_connections: {to}"));
        assert_eq!(stack.ask("select current_setting('max_connections')"), to);
        ledger.await_writes(20);
    }
    // The CA of etcd's clients, which nodes check members by.
    lab.run(&["cert", "rotate", "clients", "--yes"]).ok();
    stack.apply();
    ledger.await_writes(20);
    patroni_gets_another_user(&stack);
    ledger.await_writes(20);
    // Another node on request.
    let before = eventually("a primary", || stack.primary());
    stack.switch_over();
    let after = eventually("a primary after the switchover", || stack.primary());
    assert_ne!(before, after);
    ledger.await_writes(20);
    // The primary's Patroni and PostgreSQL are killed: its agent starts them again, or a synchronous standby follows.
    stack.kill_node(&after);
    ledger.await_writes(20);
    stack.apply();
    lab.nothing_to_do();

    let (accounts, seen) = (ledger.finish(), watch.finish());
    println!("{accounts:?}\n{seen:?}");
    assert_eq!(accounts.lost, [] as [String; 0], "acknowledged and not there");
    assert_eq!(seen.two_primaries, [], "two nodes took writes at once");
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(lab.processes(), []);
}

/// One seed an operation, each under clients of its own. `RAFTSMAN_OPERATIONS` says how many, `RAFTSMAN_SEED` which comes
/// first; a hundred in a soak.
#[test]
#[allow(clippy::print_stdout, reason = "a table is printed")]
fn whatever_happens_no_acknowledged_commit_is_lost() {
    let said = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let wanted = said("RAFTSMAN_OPERATIONS").unwrap_or(if soak() { 100 } else { 2 });
    let drawn = || Dice::of_this_run("postgres").below(if soak() { 1 } else { 1000 }) as u64;
    let first = said("RAFTSMAN_SEED").unwrap_or_else(drawn);
    // Networks between its machines that can be cut.
    partition::enter();
    let mut lab = Lab::new(&file("    quota: 2GiB\n"));
    let groups = Groups::of(&mut lab);
    write_password(&lab, "shop", None);
    let superuser = |_: &str, statement: &str| psql(&lab, statement);
    let stack = Stack { lab: &lab, superuser: &superuser };
    stack.apply();
    let clients = stack.clients("db");
    println!("seed  operation               seconds  acknowledged  longest gap  lost  two primaries");
    let mut wrong = Vec::new();
    for seed in first..first + wanted {
        // Every operation once in as many seeds as there are operations, each time in another order.
        let all = Operation::ALL.len() as u64;
        let mut order = Operation::ALL;
        Dice::new(seed / all).shuffle(&mut order);
        let operation = order[usize::try_from(seed % all).expect("small")];
        let (watch, ledger) = (Watch::start(&clients), Ledger::start(&clients, 4));
        let begun = Instant::now();
        operation.carry_out(&stack, &groups, &mut Dice::new(seed));
        let took = begun.elapsed().as_secs_f64();
        ledger.await_writes(20);
        let (accounts, seen) = (ledger.finish(), watch.finish());
        let left_behind = forks::left_behind(&accounts.highest, &stack.ask(forks::HISTORY));
        println!(
            "{seed:>4}  {:<22}  {took:>7.1}  {:>12}  {:>8} ms  {:>4}  {:>13}",
            operation.name(),
            accounts.acknowledged,
            accounts.longest_gap.as_millis(),
            accounts.lost.len(),
            seen.two_primaries.len(),
        );
        let two = !seen.two_primaries.is_empty() && !operation.leaves_a_former_primary();
        if !accounts.lost.is_empty() || !left_behind.is_empty() || two {
            wrong.push(format!("seed {seed}, {}: {left_behind:?}\n{accounts:?}\n{seen:?}", operation.name()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    lab.destroy();
    assert_eq!(lab.processes(), []);
}

/// One answer of a server of PostgreSQL to the role.
fn answer(host: &str, login: &str, statement: &str) -> (bool, String) {
    let mut psql = Command::new(postgres_dir().join("bin/psql"));
    let asked = psql.args(["-X", "-At", "-c", statement, "-d", &format!("host={host} {login}")]).output();
    let asked = asked.expect("psql runs");
    (asked.status.success(), String::from_utf8_lossy(&[asked.stdout, asked.stderr].concat()).trim().to_owned())
}

/// Behind one port is the primary, behind the other a standby, and clients check both by the balancer's address.
#[track_caller]
fn the_balancer_leads_by_role(lab: &Lab) {
    let env = lab.run(&["env", "--via", "db", "--json"]).ok().json();
    let ca = env["ca"].as_str().expect("a CA");
    for host in env["hosts"].as_array().expect("hosts") {
        for (port, standby) in [("port", "f"), ("replicas_port", "t")] {
            let login = format!(
                "port={} user=shop dbname=shop password=shop-secret sslmode=verify-full sslrootcert={ca}",
                env[port].as_u64().expect("a port")
            );
            let answered = answer(host.as_str().expect("a host"), &login, "select pg_is_in_recovery()");
            assert_eq!(answered, (true, standby.to_owned()), "{host} {port}");
        }
    }
    let status = lab.status()["clusters"][0]["balancers"][0].clone();
    assert_eq!(status["postgres"], "app", "{status}");
    for instance in status["instances"].as_array().expect("instances") {
        let up = |of: &str| instance[of].as_array().expect("servers").iter().filter(|s| s["state"] == "up").count();
        assert_eq!((up("members"), up("replicas")), (1, 2), "{instance}");
    }
}

/// What stands in the balancer's place at Patroni sees roles, and changes nothing.
#[track_caller]
fn the_certificate_of_the_balancer_only_reads(lab: &Lab) {
    let tls = lab.machine("db-1").join("haproxy/tls/current");
    let node = lab.address("app-1");
    let ask = |arguments: &[&str], path: &str| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "5", "--write-out", "\n%{http_code}", "--resolve"]);
        curl.arg(format!("app-1:8008:{node}"));
        curl.arg("--cacert").arg(tls.join("ca.crt")).args(arguments).arg(format!("https://app-1:8008{path}"));
        String::from_utf8_lossy(&curl.output().expect("curl runs").stdout).into_owned()
    };
    let (cert, key) = (tls.join("tls.crt"), tls.join("tls.key"));
    let own = ["--cert", cert.to_str().expect("a path"), "--key", key.to_str().expect("a path")];
    assert!(ask(&[], "/patroni").ends_with("\n000"), "without a certificate there is no connection");
    let config = ask(&own, "/config");
    assert!(config.ends_with("\n200") && !config.contains("password"), "{config}");
    for (method, path, body) in [
        ("POST", "/switchover", "{\"leader\": \"app-1\"}"),
        ("POST", "/failover", "{\"candidate\": \"app-2\"}"),
        ("POST", "/restart", "{}"),
        ("POST", "/reinitialize", "{}"),
        ("PATCH", "/config", "{\"pause\": true}"),
        ("PUT", "/config", "{}"),
        ("DELETE", "/switchover", ""),
    ] {
        let refused = ask(&[&own[..], &["-X", method, "--data", body]].concat(), path);
        assert!(refused.ends_with("\n401"), "{method} {path}: {refused}");
    }
}

/// What was changed by hand is changed back; another password, another role; one that goes once nothing depends on it.
#[track_caller]
fn roles_and_databases_are_those_of_the_file(stack: &Stack<'_>) {
    let lab = stack.lab;
    let env = lab.run(&["env", "app", "--json"]).ok().json();
    let (host, ca) = (env["hosts"][0].as_str().expect("a host"), env["ca"].as_str().expect("a CA"));
    let logs_in = |user: &str, password: &str| {
        let login = format!("user={user} dbname=shop password={password} sslmode=verify-full sslrootcert={ca}");
        answer(host, &login, "select 1")
    };
    let listed = "    roles:\n      shop: { password: { file: shop.password } }\n";
    let more = "    roles:\n      shop: { password: { file: shop.password }, settings: { search_path: \"$user, public\" } }\n      \
                readers: { login: false }\n      audit: { password: { file: audit.password }, member_of: [readers, \
                pg_monitor], connection_limit: 2 }\n";
    let databases = "      shop: { owner: shop }\n";
    // `check` and `plan` say what is missing before anything is touched.
    lab.write_file(
        &lab.file().replace(listed, more).replace(databases, "      shop: { owner: shop, extensions: [pg_trgm] }\n"),
    );
    lab.write_file(&lab.file().replace("users: [shop]", "users: [shop, audit]"));
    let refused = lab.run(&["apply", "--yes"]).failed().all();
    assert!(refused.contains("audit.password does not exist"), "{refused}");
    write_password(lab, "audit", Some("first"));
    stack.apply();
    lab.nothing_to_do();
    assert_eq!(logs_in("audit", "first"), (true, "1".to_owned()));
    let similar = answer(
        host,
        &format!("user=shop dbname=shop password=shop-secret sslmode=verify-full sslrootcert={ca}"),
        "select show_trgm('x') is not null, current_setting('search_path')",
    );
    assert_eq!(similar, (true, "t|\"$user\", public".to_owned()));

    // Another password.
    write_password(lab, "audit", Some("another-secret"));
    let plan = lab.run(&["plan"]).stdout;
    assert!(plan.contains("lacks its password"), "{plan}");
    stack.apply();
    lab.nothing_to_do();
    assert!(!logs_in("audit", "first").0 && logs_in("audit", "another-secret").0);

    // By hand.
    for statement in [
        "alter role shop superuser connection limit 3",
        "alter role audit valid until '2020-01-01' password 'by-hand'",
        "alter role audit set work_mem = '1GB'",
        "revoke readers from audit",
        "alter database shop owner to audit",
        "create role guest login superuser password 'guest'",
    ] {
        stack.ask(statement);
    }
    let plan = lab.run(&["plan"]).stdout;
    for said in [
        "has superuser, connection_limit 3",
        "has a password that ends, work_mem",
        "owner shop",
        "drop postgresql role",
    ] {
        assert!(plan.contains(said), "{said}: {plan}");
    }
    stack.apply();
    lab.nothing_to_do();
    assert!(logs_in("audit", "another-secret").0 && !logs_in("guest", "guest").0);
    assert_eq!(stack.ask("select rolsuper, rolconnlimit from pg_roles where rolname = 'shop'"), "f|-1");
    assert_eq!(stack.ask("select count(*) from pg_roles where rolname = 'guest'"), "0");

    // A role that has something only loses its login, and its sessions.
    stack.ask("create role guest login password 'guest'");
    stack.ask("create database theirs owner guest");
    let blocked = lab.run(&["apply", "--yes", "--timeout", "60s"]).failed().all();
    assert!(blocked.contains("the role `guest` cannot log in any more, and is kept for what it has"), "{blocked}");
    assert_eq!(stack.ask("select rolcanlogin from pg_roles where rolname = 'guest'"), "f");
    stack.ask("alter database theirs owner to postgres");
    stack.apply();
    lab.nothing_to_do();
    assert_eq!(stack.ask("select count(*) from pg_database where datname = 'theirs'"), "1", "no database is removed");

    // One that nothing belongs to is gone, and so are its sessions.
    let hosts: Vec<&str> = env["hosts"].as_array().expect("hosts").iter().filter_map(|host| host.as_str()).collect();
    let login = format!(
        "host={} target_session_attrs=read-write user=audit dbname=shop password=another-secret sslmode=require",
        hosts.join(",")
    );
    let mut session = Command::new(postgres_dir().join("bin/psql"));
    session.args(["-X", "-c", "select pg_sleep(600)", "-d", &login]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut session = session.spawn().expect("psql runs");
    let sessions = "select count(*) from pg_stat_activity where usename = 'audit'";
    eventually("a session", || (stack.ask(sessions) == "1").then_some(()));
    let audit = lab.file().lines().find(|line| line.trim_start().starts_with("audit:")).expect("a role").to_owned();
    lab.write_file(&lab.file().replace(&format!("{audit}\n"), "").replace("users: [shop, audit]", "users: [shop]"));
    stack.apply();
    assert!(!session.wait().expect("it ends").success());
    lab.nothing_to_do();

    // No log has a password, or what one is checked by.
    for node in stack.nodes() {
        let dir = lab.machine(&node).join("postgres");
        for entry in std::fs::read_dir(&dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let log = std::fs::read_to_string(&path).expect("a log");
                let found =
                    ["shop-secret", "another-secret", "SCRAM-SHA-256$"].into_iter().find(|word| log.contains(word));
                assert_eq!(found, None, "{}", path.display());
            }
        }
    }
}

/// Standbys that connect anew are let in with the password that the file has now.
#[track_caller]
fn nodes_get_another_password(stack: &Stack<'_>) {
    let lab = stack.lab;
    let passwords = "    replicator: { password: { file: replicator.password } }\n    rewind: { password: { file: rewind.password } }\n";
    lab.write_file(&lab.file().replace("    roles:\n", &format!("{passwords}    roles:\n")));
    for password in ["of-nodes-1", "of-nodes-2"] {
        write_password(lab, "replicator", Some(password));
        write_password(lab, "rewind", Some(password));
        let plan = lab.run(&["plan"]).stdout;
        assert!(plan.contains("set node password  the file has another password"), "{plan}");
        stack.apply();
        lab.nothing_to_do();
        assert_eq!(stack.ask("select count(pg_terminate_backend(pid)) from pg_stat_replication"), "2");
        let streaming = "select count(*) from pg_stat_replication where state = 'streaming'";
        eventually("standbys that stream", || (stack.ask(streaming) == "2").then_some(()));
    }
}

/// The other user of etcd, with another password each time; the one before cannot log in any more.
#[track_caller]
fn patroni_gets_another_user(stack: &Stack<'_>) {
    let lab = stack.lab;
    let at = format!("https://{}:2379/v3/auth/authenticate", lab.address("main-1"));
    let logs_in = |(user, password): &(String, String)| {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--insecure",
            "--max-time",
            "20",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ]);
        let login = format!("{{\"name\": \"{user}\", \"password\": \"{password}\"}}");
        let asked = curl.args(["--data", &login, &at]).output().expect("curl runs");
        asked.stdout == b"200"
    };
    let of_patroni = || {
        let file = std::fs::read_to_string(lab.machine("app-1").join("postgres/patroni.yml")).expect("Patroni's file");
        let etcd = file.split_once("etcd3:").expect("a section").1;
        let value = |key: &str| {
            let line = etcd.lines().find_map(|line| line.trim().strip_prefix(key)).expect("a key");
            line.trim().trim_matches(['"', '\'']).to_owned()
        };
        (value("username:"), value("password:"))
    };
    let mut former = vec![of_patroni()];
    for user in ["app-patroni-b", "app-patroni-a"] {
        assert!(logs_in(former.last().expect("one")), "{former:?}");
        let said = lab.run(&["rotate-user", "app", "--yes"]).ok().stdout;
        assert!(said.contains(&format!("{user}      set user")), "{said}");
        lab.nothing_to_do();
        let now = of_patroni();
        assert_eq!(now.0, user);
        assert!(former.iter().all(|(_, password)| *password != now.1), "another password");
        assert!(former.iter().all(|login| !logs_in(login)) && logs_in(&now), "{former:?} {now:?}");
        former.push(now);
    }
}

/// From outside a node's machine: the role by its password and over TLS, to its database; nothing else.
#[track_caller]
fn only_the_role_gets_in(lab: &Lab) {
    let env = lab.run(&["env", "app", "--json"]).ok().json();
    let (host, ca) = (env["hosts"][0].as_str().expect("a host"), env["ca"].as_str().expect("a CA"));
    for (login, answer) in [
        (format!("user=shop dbname=shop password=shop-secret sslmode=verify-full sslrootcert={ca}"), "1"),
        ("user=shop dbname=shop password=shop-secret sslmode=disable".to_owned(), "pg_hba.conf rejects"),
        ("user=shop dbname=shop password=wrong sslmode=require".to_owned(), "password authentication failed"),
        ("user=shop dbname=postgres password=shop-secret sslmode=require".to_owned(), "pg_hba.conf rejects"),
        ("user=postgres dbname=postgres password=shop-secret sslmode=require".to_owned(), "pg_hba.conf rejects"),
        ("user=replicator dbname=postgres password=shop-secret sslmode=require".to_owned(), "pg_hba.conf rejects"),
    ] {
        let (worked, said) = self::answer(host, &login, "select 1");
        assert!(said.contains(answer) && worked == (answer == "1"), "{login}: {said}");
    }
}

/// The default bundle is the one beside the agent, and a file without one says how it is made.
#[test]
fn a_missing_bundle_is_named_before_anything_is_made() {
    let text = file("");
    let (from, to) = (text.find(", source: { bundle").expect("a source"), text.find(" } } }\n").expect("its end"));
    let lab = Lab::new(&format!("{}{}", &text[..from], &text[to + " } }".len()..]));
    let beside = raftsman_tests::lab::binary("raftsman-agent").with_file_name("patroni-4.1.5.tar");
    if beside.exists() {
        return;
    }
    let refused = lab.run(&["apply", "--yes"]).failed();
    assert!(refused.stderr.contains("the bundle of Patroni 4.1.5 is not at"), "{}", refused.all());
    assert!(!lab.path().join(".raftsman/machines").exists(), "nothing was made");
}

/// The agent with Patroni's bundle beside it, as they are installed; the file is what `init` writes.
#[test]
fn a_file_of_init_becomes_a_working_stack() {
    let programs = tempfile::tempdir().expect("a directory");
    let agent = programs.path().join("raftsman-agent");
    std::fs::copy(raftsman_tests::lab::binary("raftsman-agent"), &agent).expect("a copy");
    std::fs::copy(postgres_dir().join("patroni-4.1.5.tar"), agent.with_file_name("patroni-4.1.5.tar")).expect("a copy");
    let mut lab = Lab::new("");
    std::fs::remove_file(lab.path().join("raftsman.yaml")).expect("removed");
    lab.use_agent(agent.clone());
    let etcd = etcd_dir().join("3.6.15/etcd");
    let init = ["init", "--with", "postgres", "--etcd", etcd.to_str().expect("a path")];
    let said = lab.run(&init).ok().stdout;
    assert!(said.contains("3 members of etcd and 3 nodes of PostgreSQL on this computer"), "{said}");
    assert!(
        !said.contains("bundle") && said.contains("app.password: the password of PostgreSQL's role `app`"),
        "{said}"
    );
    let password = lab.path().join("app.password");
    let mode = std::fs::metadata(&password).expect("a password").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let password = std::fs::read_to_string(password).expect("a password");
    lab.run(&["check"]).ok();
    lab.run(&["apply", "--yes", "--timeout", "180s"]).ok();
    lab.nothing_to_do();
    assert_eq!(psql(&lab, "select pg_is_in_recovery()").ok().stdout.trim(), "f");
    // The application's own login, by what `env` says.
    let env = lab.run(&["env", "app"]).ok().stdout;
    let script = format!("{env}\nexec psql -X -At -U app -c 'create table t as select 1; select current_user' app");
    let client = Command::new("sh").args(["-c", &script]).env("PGPASSWORD", &password).output().expect("a shell");
    let said = String::from_utf8_lossy(&client.stdout);
    assert!(said.ends_with("app\n"), "{said} {}", String::from_utf8_lossy(&client.stderr));
    assert_eq!(lab.run(&["status", "app", "--json"]).ok().json()["clusters"][0]["postgres"][0]["state"], "settled");
    lab.destroy();
    // What is missing is said, and the file is written all the same.
    std::fs::remove_file(agent.with_file_name("patroni-4.1.5.tar")).expect("removed");
    std::fs::remove_file(lab.path().join("raftsman.yaml")).expect("removed");
    let said = lab.run(&init).ok().stdout;
    assert!(said.contains("the bundle of Patroni 4.1.5 is not at"), "{said}");
    assert!(said.contains("app.password is there already"), "{said}");
    assert_eq!(std::fs::read_to_string(lab.path().join("app.password")).expect("a password"), password);
}
