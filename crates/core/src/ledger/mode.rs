//! Whether raftsman runs a cluster, has adopted it, or builds all of it anew: one of these at a time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{EtcdLedger, Recovery, Restoration};
use crate::spec::Name;

/// What goes on with a cluster as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mode {
    /// raftsman runs it.
    #[default]
    Normal,
    /// It is adopted read-only: raftsman watches its members, and manages none of its machines.
    Adopted(Adopted),
    /// It is built anew around the member that survived, because an operator decided so.
    Recovering(Recovery),
    /// A backup takes the place of all its data, because an operator decided so.
    Restoring(Box<Restoration>),
}

/// A cluster that is adopted read-only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Where clients reach each member: it may have another port than raftsman would use.
    pub clients: BTreeMap<Name, String>,
}

impl EtcdLedger {
    /// The record of an adopted cluster.
    pub fn adopted(&self) -> Option<&Adopted> {
        match &self.mode {
            Mode::Adopted(adopted) => Some(adopted),
            Mode::Normal | Mode::Recovering(_) | Mode::Restoring(_) => None,
        }
    }

    /// The recovery that is under way.
    pub fn recovery(&self) -> Option<&Recovery> {
        match &self.mode {
            Mode::Recovering(recovery) => Some(recovery),
            Mode::Normal | Mode::Adopted(_) | Mode::Restoring(_) => None,
        }
    }

    /// The recovery that is under way, to be changed.
    pub fn recovery_mut(&mut self) -> Option<&mut Recovery> {
        match &mut self.mode {
            Mode::Recovering(recovery) => Some(recovery),
            Mode::Normal | Mode::Adopted(_) | Mode::Restoring(_) => None,
        }
    }

    /// The restore that is under way.
    pub fn restoration(&self) -> Option<&Restoration> {
        match &self.mode {
            Mode::Restoring(restoration) => Some(restoration),
            Mode::Normal | Mode::Adopted(_) | Mode::Recovering(_) => None,
        }
    }

    /// The restore that is under way, to be changed.
    pub fn restoration_mut(&mut self) -> Option<&mut Restoration> {
        match &mut self.mode {
            Mode::Restoring(restoration) => Some(restoration),
            Mode::Normal | Mode::Adopted(_) | Mode::Recovering(_) => None,
        }
    }

    /// Whether a restore or a recovery is under way: an operator decided that all members lose their data.
    pub fn is_built_anew(&self) -> bool {
        match self.mode {
            Mode::Recovering(_) | Mode::Restoring(_) => true,
            Mode::Normal | Mode::Adopted(_) => false,
        }
    }
}
