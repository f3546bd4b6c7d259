//! The one order that a sandbox gets, as the warden wrote it down (`isolation/order.rs`) after it had checked the front's.
#![forbid(unsafe_code)]

use super::fields::Fields;
use super::sheet::RLIMITS;
use core::ffi::CStr;

/// First byte of an order.
pub const MARK: u8 = b'O';

/// Where the files of a run are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// In the areas that init mounted.
    Areas,
    /// In a project, mounted over two of them.
    Project,
    /// They come when the program runs already.
    Later,
}

/// An order.
pub struct Order<'a> {
    pub files: Files,
    /// A session: its descriptors stay open, and its interrupts arrive as signals.
    pub session: bool,
    /// Whether its pidfd is wanted.
    pub signals: bool,
    /// Rows and columns of its terminal.
    pub terminal: Option<(u16, u16)>,
    /// Descriptors that come with it.
    pub fds: u8,
    /// In the order of the sheet's.
    pub rlimits: [u64; RLIMITS],
    pub command: &'a CStr,
    pub cwd: &'a CStr,
    argc: u16,
    envc: u16,
    words: Fields<'a>,
}

impl<'a> Order<'a> {
    /// The order of these bytes.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u8()? != MARK {
            return None;
        }
        let files = match fields.u8()? {
            0 => Files::Areas,
            1 => Files::Project,
            2 => Files::Later,
            _ => return None,
        };
        let (session, signals, fds) = (fields.u8()? != 0, fields.u8()? != 0, fields.u8()?);
        let (rows, cols) = (fields.u16()?, fields.u16()?);
        let mut rlimits = [0; RLIMITS];
        for amount in &mut rlimits {
            *amount = fields.u64()?;
        }
        let (argc, envc) = (fields.u16()?, fields.u16()?);
        let (command, cwd) = (fields.word()?, fields.word()?);
        let terminal = (rows != 0).then_some((rows, cols));
        let order = Self { files, session, signals, terminal, fds, rlimits, command, cwd, argc, envc, words: fields };
        order.is_whole().then_some(order)
    }

    /// As many words as were counted, and nothing behind them.
    fn is_whole(&self) -> bool {
        let mut words = self.words;
        let all = (0..u32::from(self.argc) + u32::from(self.envc)).all(|_| words.word().is_some());
        all && words.0.is_empty() && self.argc > 0
    }

    fn words(&self, skip: u16, count: u16) -> impl Iterator<Item = &'a CStr> + use<'a> {
        let mut words = self.words;
        for _ in 0..skip {
            let _ = words.word(); // `read` has counted them
        }
        (0..count).map_while(move |_| words.word())
    }

    /// The arguments, the program's own name first.
    pub fn argv(&self) -> impl Iterator<Item = &'a CStr> + use<'a> {
        self.words(0, self.argc)
    }

    /// The environment, `NAME=value` each.
    pub fn env(&self) -> impl Iterator<Item = &'a CStr> + use<'a> {
        self.words(self.argc, self.envc)
    }
}
