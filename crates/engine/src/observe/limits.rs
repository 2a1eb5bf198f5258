//! A call of the agent's protocol → how long it may take.

use std::time::Duration;

use raftsman_api::deadline::Limit;

/// Reading what is in memory or in small files.
const LOOK: Duration = Duration::from_secs(5);
/// Writing small files, to the disk.
const WRITE: Duration = Duration::from_secs(20);
/// Ending etcd: 20 s of grace, 30 s for SIGKILL in a disk that hangs, and the start after it.
const PROCESS: Duration = Duration::from_secs(60);
/// System programs such as systemd that apply a change; and the cleaning of a machine.
const SYSTEM: Duration = Duration::from_secs(90);
/// PostgreSQL writes its memory to the disk, ends and starts again: an agent waits for ten minutes.
const POSTGRES: Duration = Duration::from_secs(660);
/// An agent takes about 5 s at most to measure.
const MEASURE: Duration = Duration::from_secs(15);
/// A database of the greatest size that etcd suggests is read or written in less, also on a slow disk.
const DATABASE: Duration = Duration::from_secs(1800);

/// The limit of a call to an agent. One that is not in the table is a small write.
pub(crate) fn of_agent(call: &str) -> Limit {
    known(call).unwrap_or_else(|| prompt(WRITE))
}

fn known(call: &str) -> Option<Limit> {
    Some(match call {
        "Claim" | "Report" | "Logs" | "ProgramLogs" | "PassFence" | "ReadCatalog" => prompt(LOOK),
        "FinishClaim" | "RequestCertificate" | "StoreCertificate" | "StoreTrust" | "SetAccess" | "PinBinaries"
        | "ConfigureEtcd" | "ConfigureProgram" | "SetServer" | "SetBackups" | "Handshake" => prompt(WRITE),
        // Counted from the last piece that was sent.
        "InstallEtcd" | "InstallProgram" | "UpgradeAgent" => prompt(PROCESS),
        "StartEtcd" | "RestartEtcd" | "StopEtcd" | "ClearData" => prompt(PROCESS),
        "StartProgram" | "ReloadProgram" => prompt(PROCESS),
        // Patroni ends PostgreSQL, which writes its memory to the disk.
        "RestartProgram" | "StopProgram" => Limit { prompt: false, ..prompt(POSTGRES) },
        "SetFirewall" | "Deliver" | "Leave" => prompt(SYSTEM),
        "ConfigurePatroni" | "LogInToEtcd" => prompt(WRITE),
        "SetPatroni" | "ReinitializeNode" | "SetPostgresRole" | "SetNodePassword" | "DropPostgresRole"
        | "SetDatabase" => prompt(SYSTEM),
        // Patroni answers when it is done.
        "RestartPostgres" | "SwitchOver" => Limit { prompt: false, ..prompt(POSTGRES) },
        "Measure" => prompt(MEASURE),
        "RestoreData" | "Compare" => Limit { prompt: false, ..prompt(DATABASE) },
        // It reports progress twice a second.
        "TakeBackup" => Limit { answer: Some(WRITE), silence: Some(PROCESS), prompt: false },
        // It sends nothing while a snapshot is restored.
        "Rehearse" => Limit { answer: Some(DATABASE), silence: Some(DATABASE), prompt: false },
        _ => return None,
    })
}

fn prompt(within: Duration) -> Limit {
    Limit { answer: Some(within), silence: None, prompt: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_the_protocol_has_a_limit() {
        let protocol = include_str!("../../../api/proto/raftsman/agent/v1/agent.proto");
        let calls = protocol.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next());
        let calls: Vec<&str> = calls.collect();
        assert!(calls.len() > 20, "{calls:?}");
        for call in calls {
            assert!(known(call).is_some_and(|limit| limit.answer.is_some()), "{call} has no limit");
        }
    }
}
