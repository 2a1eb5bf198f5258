//! A database of 1 GiB, clients at work, operations on it one after the other → what clients noticed, as a table.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use raftsman_tests::bulk::Bulk;
use raftsman_tests::lab::Lab;
use raftsman_tests::load::{Load, LoadSettings};

const VERSION: &str = "3.6.15";
/// Small enough for more transactions than etcd keeps in its log: a new member gets the database as a whole.
const VALUE: usize = 16 << 10;
const RATE: u32 = 200;
/// Load before and after an operation.
const QUIET: Duration = Duration::from_secs(2);

struct Table {
    lab: Lab,
    sound: bool,
}

impl Table {
    /// Does it under load, and prints what clients noticed.
    fn row(&mut self, name: &str, operation: impl FnOnce(&Lab)) {
        let load = Load::start(&self.lab, LoadSettings { rate: RATE, ..LoadSettings::default() });
        std::thread::sleep(QUIET);
        let begun = Instant::now();
        operation(&self.lab);
        let took = begun.elapsed();
        std::thread::sleep(QUIET);
        let verdict = load.finish();
        let figures = &verdict.figures;
        let status = self.lab.cluster_status();
        println!(
            "| {name} | {} | {:.1} | {:.0} | {} ms | {} ms | {} | {} | {} |",
            status["members"].as_array().map_or(0, Vec::len),
            took.as_secs_f64(),
            figures.throughput(),
            figures.percentile_99.as_millis(),
            figures.longest_gap.length.as_millis(),
            figures.retried,
            figures.errors,
            verdict.violations.len(),
        );
        if !verdict.clean() || status["settled"] != true {
            println!("{verdict}\nsettled: {}", status["settled"]);
            self.sound = false;
        }
    }
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let said = arguments.first().and_then(|n| n.parse().ok());
    let mib: usize = said.unwrap_or(1024);
    let lab = Lab::cluster(3, VERSION, &["quota: 4GiB", "log_level: info"]);
    lab.run(&["apply", "--yes"]).ok();
    let begun = Instant::now();
    Bulk::of(&lab).pour("bulk/", mib << 20, VALUE).expect("written");
    let size = lab.cluster_status()["members"][0]["db_size"].as_i64().unwrap_or(0);
    println!("etcd {VERSION}, {} MiB in each database, written in {:.0} s", size >> 20, begun.elapsed().as_secs_f64());
    println!("{RATE} writes a second, with reads, transactions and a watch\n");
    println!(
        "| operation | members after | seconds | acknowledged/s | 99 of 100 writes within | longest gap | retried | \
         errors after one retry | violations |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut table = Table { lab, sound: true };
    let apply = |lab: &Lab, from: &str, to: &str| {
        lab.write_file(&lab.file().replace(from, to));
        lab.run(&["apply", "--yes", "--timeout", "10m"]).ok();
    };
    table.row("nothing", |_| std::thread::sleep(Duration::from_secs(10)));
    table.row("replace a member", |lab| {
        lab.run(&["replace", "main-2", "--yes", "--timeout", "10m"]).ok();
    });
    table.row("grow by two", |lab| apply(lab, "members: 3", "members: 5"));
    table.row("defragment all", |lab| {
        lab.run(&["defrag", "--all"]).ok();
    });
    table.row("restart all", |lab| apply(lab, "log_level: info", "log_level: warn"));
    table.row("verify", |lab| {
        lab.run(&["verify"]).ok();
    });
    table.lab.destroy();
    if table.sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
