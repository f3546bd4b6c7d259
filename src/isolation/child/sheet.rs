//! What every sandbox of a profile has in common, as the warden wrote it down (`isolation/image.rs`): a sealed file that
//! each of them maps. It is trusted, but read with care: a sheet that is cut short ends the process before its first step.
#![forbid(unsafe_code)]

use super::fields::Fields;
use core::ffi::CStr;

/// Limits of a run.
pub const RLIMITS: usize = 11;

/// A limit of the profile.
#[derive(Clone, Copy)]
pub struct Rlimit {
    pub resource: u32,
    pub amount: u64,
    /// It is set when the run is known.
    pub late: bool,
}

/// What Landlock is asked for.
#[derive(Clone, Copy)]
pub struct Landlock<'a> {
    /// Files, ports, scopes that are refused; and how many bytes of it this kernel takes.
    pub attributes: [u64; 3],
    pub attributes_len: usize,
    /// What an area that may be written is given.
    pub write: u64,
    rules: Fields<'a>,
    rules_count: u16,
}

/// The sheet.
pub struct Sheet<'a> {
    /// For tests: the step that is to fail; a number that no step has, for none.
    pub sabotage: u8,
    pub filter_ahead: bool,
    /// Signals that the warden ignores, and we with it.
    pub ignored_signals: u64,
    pub filter: &'a [u8],
    pub init_filter: &'a [u8],
    pub rlimits: [Rlimit; RLIMITS],
    pub landlock: Option<Landlock<'a>>,
    masks: (u16, Fields<'a>),
    areas: (u16, Fields<'a>),
}

/// How a path of /proc is taken away; the numbers are `plan::Mask`'s.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    File,
    Directory,
    ReadOnly,
}

impl<'a> Sheet<'a> {
    /// The sheet of these bytes.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (sabotage, filter_ahead) = (fields.u8()?, fields.u8()? != 0);
        let ignored_signals = fields.u64()?;
        let (filter, init_filter) = (fields.bytes()?, fields.bytes()?);
        let mut rlimits = [Rlimit { resource: 0, amount: 0, late: false }; RLIMITS];
        for limit in &mut rlimits {
            *limit = Rlimit { resource: fields.u32()?, amount: fields.u64()?, late: fields.u8()? != 0 };
        }
        let landlock = match fields.u8()? {
            0 => None,
            len => {
                let attributes = [fields.u64()?, fields.u64()?, fields.u64()?];
                let write = fields.u64()?;
                let (rules_count, rules) = (fields.u16()?, Fields(fields.bytes()?));
                Some(Landlock { attributes, attributes_len: len.into(), write, rules, rules_count })
            }
        };
        let masks = (fields.u16()?, Fields(fields.bytes()?));
        let areas = (fields.u16()?, Fields(fields.bytes()?));
        let whole = fields.0.is_empty();
        whole.then_some(Self {
            sabotage,
            filter_ahead,
            ignored_signals,
            filter,
            init_filter,
            rlimits,
            landlock,
            masks,
            areas,
        })
    }

    /// What is hidden of /proc: paths below it, and how.
    pub fn masks(&self) -> impl Iterator<Item = Option<(Mask, &'a CStr)>> + use<'a> {
        let (count, mut fields) = self.masks;
        (0..count).map(move |_| {
            let mask = match fields.u8()? {
                0 => Mask::File,
                1 => Mask::Directory,
                _ => Mask::ReadOnly,
            };
            Some((mask, fields.word()?))
        })
    }

    /// What may be written: mount points and their options.
    pub fn areas(&self) -> impl Iterator<Item = Option<(&'a CStr, &'a CStr)>> + use<'a> {
        let (count, mut fields) = self.areas;
        (0..count).map(move |_| Some((fields.word()?, fields.word()?)))
    }
}

impl<'a> Landlock<'a> {
    /// Paths, and what is allowed below each.
    pub fn rules(&self) -> impl Iterator<Item = Option<(&'a CStr, u64)>> + use<'a> {
        let mut fields = self.rules;
        (0..self.rules_count).map(move |_| {
            let access = fields.u64()?;
            Some((fields.word()?, access))
        })
    }
}
