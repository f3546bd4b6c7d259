//! Budgets: what a grant may use up, and the account that keeps it.
//!
//! ```text
//! reserve(least, most) ──▶ Reservation ──▶ meter(used)  Going(left) | Exhausted(meter): stop the exec
//!                              │   ▲
//!                              │   └ extend(more), while there is more
//!                              ├──▶ settle(used)   used is spent, the rest comes back
//!                              └──▶ give_back()    nothing was started
//! ```
//!
//! What is reserved is nobody else's, so several execs on one grant can't overspend together: at every moment spent +
//! reserved ≤ budget, in every meter. A program can outrun its reservation by what it does before it is stopped. That is
//! charged as far as there is something left, and the rest is reported as `over`: it is never hidden, and never
//! takes from what another exec has reserved.
//!
//! An account is a value without a lock or a clock. Whoever shares one puts it behind a lock, or on one thread.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

macro_rules! meters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// One thing a budget counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Meter { $($(#[$doc])* $variant,)* }

        impl Meter {
            /// Every meter.
            pub const ALL: [Meter; 6] = [$(Meter::$variant,)*];

            /// The key in budgets.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Meter::$variant => $name,)* }
            }
        }
    };
}

meters! {
    /// Execs that were started.
    Calls = "calls";
    /// Bytes given to them.
    BytesIn = "bytes_in";
    /// Bytes they wrote.
    BytesOut = "bytes_out";
    /// Processor time.
    CpuMs = "cpu_ms";
    /// Graphics processor time.
    GpuMs = "gpu_ms";
    /// Files they left.
    FileCount = "file_count";
}

/// One value for each [`Meter`]. On the wire a map; what is left out is the default, an unknown key is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PerMeter<T>([T; Meter::ALL.len()]);

/// How much of each.
pub type Amounts = PerMeter<u64>;
/// The most of each: absent is unlimited, 0 is nothing.
pub type Budget = PerMeter<Option<u64>>;

impl<T: Copy> PerMeter<T> {
    /// The value of one meter.
    #[must_use]
    pub fn get(&self, meter: Meter) -> T {
        self.0[meter as usize]
    }

    /// The same with another value for one meter.
    #[must_use]
    pub fn with(mut self, meter: Meter, value: T) -> Self {
        self.0[meter as usize] = value;
        self
    }

    /// A value for each meter.
    pub fn each(make: impl FnMut(Meter) -> T) -> Self {
        Self(Meter::ALL.map(make))
    }

    /// The values in the order of [`Meter::ALL`].
    #[must_use]
    pub fn values(&self) -> [T; Meter::ALL.len()] {
        self.0
    }
}

impl Amounts {
    fn plus(&self, other: &Self) -> Self {
        Self::each(|meter| self.get(meter).saturating_add(other.get(meter)))
    }
}

impl Budget {
    /// The smaller of each, as when a tenant has a budget beside the grant's.
    #[must_use]
    pub fn strictest(&self, other: &Self) -> Self {
        Self::each(|meter| match (self.get(meter), other.get(meter)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        })
    }
}

impl<T: Serialize + Default + PartialEq> Serialize for PerMeter<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let said =
            Meter::ALL.iter().map(|meter| meter.name()).zip(&self.0).filter(|(_, value)| **value != T::default());
        serializer.collect_map(said)
    }
}

impl<'de, T: Deserialize<'de> + Default + Copy> Deserialize<'de> for PerMeter<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Default + Copy> serde::de::Visitor<'de> for Visitor<T> {
            type Value = PerMeter<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of calls, bytes_in, bytes_out, cpu_ms, gpu_ms, file_count")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<PerMeter<T>, A::Error> {
                let mut all = PerMeter::default();
                let mut seen = [false; Meter::ALL.len()];
                while let Some((meter, value)) = map.next_entry::<Meter, T>()? {
                    if std::mem::replace(&mut seen[meter as usize], true) {
                        return Err(serde::de::Error::duplicate_field(meter.name()));
                    }
                    all = all.with(meter, value);
                }
                Ok(all)
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

/// The budget does not have that much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the budget has {left} {} left, {asked} were asked for", .meter.name())]
pub struct Exceeded {
    /// The first meter that does not have enough.
    pub meter: Meter,
    /// What was asked for.
    pub asked: u64,
    /// What is there.
    pub left: u64,
}

/// A reservation that this account does not hold: another account's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the account holds no such reservation")]
pub struct NotHeld;

/// Amounts set aside for one exec. It can't be copied, so it is settled once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is neither settled nor given back stays reserved"]
pub struct Reservation {
    account: String,
    serial: u64,
    held: Amounts,
}

/// How a running exec stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metered {
    /// It may go on; this is left of its reservation.
    Going(Amounts),
    /// A meter has run past what is reserved: stop it, or extend the reservation.
    Exhausted(Meter),
}

impl Reservation {
    /// What is set aside.
    #[must_use]
    pub fn held(&self) -> Amounts {
        self.held
    }

    /// How an exec that has used so much stands. Using all of it is within it; using more is not.
    #[must_use]
    pub fn meter(&self, used: &Amounts) -> Metered {
        match Meter::ALL.into_iter().find(|&meter| used.get(meter) > self.held.get(meter)) {
            Some(meter) => Metered::Exhausted(meter),
            None => Metered::Going(Amounts::each(|meter| self.held.get(meter) - used.get(meter))),
        }
    }
}

/// What a settlement came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    /// What was charged.
    pub charged: Amounts,
    /// What was used beyond everything that was left; for the evidence.
    pub over: Amounts,
}

/// The state of one budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    name: String,
    budget: Budget,
    spent: Amounts,
    open: BTreeMap<u64, Amounts>,
    next: u64,
}

impl Account {
    /// A fresh account; its name (the grant's id) keeps its reservations from being settled elsewhere.
    #[must_use]
    pub fn new(name: impl Into<String>, budget: Budget) -> Self {
        Self { name: name.into(), budget, spent: Amounts::default(), open: BTreeMap::new(), next: 0 }
    }

    /// What it may use up in all.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// What was used up.
    #[must_use]
    pub fn spent(&self) -> Amounts {
        self.spent
    }

    /// What is set aside for running execs.
    #[must_use]
    pub fn reserved(&self) -> Amounts {
        self.open.values().fold(Amounts::default(), |sum, held| sum.plus(held))
    }

    /// What nobody has spent or reserved; `None` where there is no end.
    #[must_use]
    pub fn left(&self) -> Budget {
        let taken = self.spent.plus(&self.reserved());
        Budget::each(|meter| self.budget.get(meter).map(|most| most.saturating_sub(taken.get(meter))))
    }

    /// What is there of `asked`.
    fn available(&self, asked: &Amounts) -> Amounts {
        let left = self.left();
        Amounts::each(|meter| left.get(meter).map_or(asked.get(meter), |left| left.min(asked.get(meter))))
    }

    /// Sets aside as much as there is up to `most`, but not less than `least`: an exec whose limits are above what its
    /// grant has left can run with that, and is stopped there. `least` above `most` is read as both.
    pub fn reserve(&mut self, least: &Amounts, most: &Amounts) -> Result<Reservation, Exceeded> {
        let most = Amounts::each(|meter| most.get(meter).max(least.get(meter)));
        let held = self.available(&most);
        if let Some(meter) = Meter::ALL.into_iter().find(|&meter| held.get(meter) < least.get(meter)) {
            return Err(Exceeded { meter, asked: least.get(meter), left: held.get(meter) });
        }
        let serial = self.next;
        self.next += 1; // a reservation every nanosecond takes 584 years to get around
        self.open.insert(serial, held);
        Ok(Reservation { account: self.name.clone(), serial, held })
    }

    /// Adds what there is of `more` to a reservation and says how much that was.
    pub fn extend(&mut self, reservation: &mut Reservation, more: &Amounts) -> Result<Amounts, NotHeld> {
        self.held(reservation)?;
        // Together they stay countable also where the budget has no end.
        let room = Amounts::each(|meter| more.get(meter).min(u64::MAX - reservation.held.get(meter)));
        let added = self.available(&room);
        reservation.held = reservation.held.plus(&added);
        self.open.insert(reservation.serial, reservation.held);
        Ok(added)
    }

    /// Charges what was used and gives the rest back.
    pub fn settle(&mut self, reservation: Reservation, used: &Amounts) -> Result<Settled, NotHeld> {
        self.held(&reservation)?;
        self.open.remove(&reservation.serial);
        let charged = self.available(used); // the reservation is free again, and nobody could take it in between
        self.spent = self.spent.plus(&charged);
        Ok(Settled { charged, over: Amounts::each(|meter| used.get(meter) - charged.get(meter)) })
    }

    /// Undoes a reservation: nothing was started.
    pub fn give_back(&mut self, reservation: Reservation) -> Result<(), NotHeld> {
        self.settle(reservation, &Amounts::default()).map(drop)
    }

    /// After a crash: charges all that was reserved in full, since nobody knows how much of it was used.
    pub fn charge_open(&mut self) -> Amounts {
        let lost = self.reserved();
        self.open.clear();
        self.spent = self.spent.plus(&lost);
        lost
    }

    fn held(&self, reservation: &Reservation) -> Result<(), NotHeld> {
        let same = self.name == reservation.account && self.open.get(&reservation.serial) == Some(&reservation.held);
        if same { Ok(()) } else { Err(NotHeld) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpu(ms: u64) -> Amounts {
        Amounts::default().with(Meter::CpuMs, ms)
    }

    fn account(cpu_ms: u64) -> Account {
        Account::new("gr_1", Budget::default().with(Meter::CpuMs, Some(cpu_ms)))
    }

    #[test]
    fn reserve_meter_settle() {
        let mut account = account(100);
        let first = account.reserve(&cpu(1), &cpu(60)).expect("there is enough");
        let second = account.reserve(&cpu(1), &cpu(60)).expect("40 are left");
        assert_eq!((first.held(), second.held()), (cpu(60), cpu(40)));
        assert_eq!(account.reserve(&cpu(1), &cpu(1)), Err(Exceeded { meter: Meter::CpuMs, asked: 1, left: 0 }));
        assert_eq!(first.meter(&cpu(60)), Metered::Going(cpu(0)));
        assert_eq!(first.meter(&cpu(61)), Metered::Exhausted(Meter::CpuMs));
        assert_eq!(account.settle(first, &cpu(10)), Ok(Settled { charged: cpu(10), over: cpu(0) }));
        assert_eq!(account.settle(second, &cpu(95)), Ok(Settled { charged: cpu(90), over: cpu(5) }));
        assert_eq!((account.spent(), account.reserved()), (cpu(100), cpu(0)));
    }

    #[test]
    fn an_overrun_does_not_take_what_another_has_reserved() {
        let mut account = account(100);
        let (first, second) = (account.reserve(&cpu(50), &cpu(50)), account.reserve(&cpu(50), &cpu(50)));
        let settled = account.settle(first.expect("half"), &cpu(70)).expect("held");
        assert_eq!((settled.charged, settled.over), (cpu(50), cpu(20)));
        assert_eq!(account.settle(second.expect("half"), &cpu(50)).expect("held").charged, cpu(50));
    }

    #[test]
    fn absent_is_unlimited_and_zero_is_nothing() {
        let mut open = Account::new("gr_1", Budget::default());
        let all = Amounts::each(|_| u64::MAX);
        let (a, b) = (open.reserve(&all, &all).expect("no end"), open.reserve(&all, &all).expect("no end"));
        open.settle(a, &all).expect("held");
        assert_eq!(open.settle(b, &all).expect("held").over, Amounts::default());
        assert_eq!(open.left(), Budget::default());
        let mut closed = account(0);
        assert!(closed.reserve(&cpu(1), &cpu(1)).is_err());
        assert_eq!(closed.reserve(&cpu(0), &cpu(9)).expect("needs nothing").held(), cpu(0));
    }

    #[test]
    fn a_reservation_belongs_to_its_account() {
        let (mut a, mut b) = (account(10), Account::new("gr_2", Budget::default()));
        let theirs = b.reserve(&cpu(5), &cpu(5)).expect("no end");
        let _ours = a.reserve(&cpu(5), &cpu(5)).expect("there is enough");
        assert_eq!(a.settle(theirs, &cpu(0)), Err(NotHeld));
    }

    #[test]
    fn after_a_crash_what_was_reserved_counts_as_used() {
        let mut account = account(100);
        let _lost = account.reserve(&cpu(30), &cpu(30)).expect("there is enough");
        let text = serde_json::to_string(&account).expect("json");
        let mut found: Account = serde_json::from_str(&text).expect("the same");
        assert_eq!(found, account);
        assert_eq!(found.charge_open(), cpu(30));
        assert_eq!((found.spent(), found.left().get(Meter::CpuMs)), (cpu(30), Some(70)));
    }

    #[test]
    fn a_budget_on_the_wire() {
        let budget: Budget = serde_json::from_str(r#"{"calls":3,"cpu_ms":0,"gpu_ms":null}"#).expect("a budget");
        assert_eq!(
            (budget.get(Meter::Calls), budget.get(Meter::CpuMs), budget.get(Meter::GpuMs)),
            (Some(3), Some(0), None)
        );
        assert_eq!(serde_json::to_string(&budget).expect("json"), r#"{"calls":3,"cpu_ms":0}"#);
        for bad in [r#"{"call":3}"#, r#"{"calls":-1}"#, r#"{"calls":1,"calls":2}"#, "[]", r#"{"calls":1.5}"#] {
            assert!(serde_json::from_str::<Budget>(bad).is_err(), "{bad}");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Reserve(Amounts, Amounts),
        Extend(usize, Amounts),
        Settle(usize, Amounts),
        GiveBack(usize),
        Restart,
    }

    fn amounts() -> impl Strategy<Value = Amounts> {
        prop::array::uniform6(prop_oneof![8 => 0..30u64, 1 => Just(u64::MAX)]).prop_map(PerMeter)
    }

    fn budgets() -> impl Strategy<Value = Budget> {
        prop::array::uniform6(prop_oneof![3 => (0..60u64).prop_map(Some), 1 => Just(None)]).prop_map(PerMeter)
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let small = || prop::array::uniform6(0..4u64).prop_map(PerMeter);
        let step = prop_oneof![
            6 => (small(), amounts()).prop_map(|(least, most)| Step::Reserve(least, most)),
            2 => (any::<usize>(), amounts()).prop_map(|(n, more)| Step::Extend(n, more)),
            4 => (any::<usize>(), amounts()).prop_map(|(n, used)| Step::Settle(n, used)),
            1 => any::<usize>().prop_map(Step::GiveBack),
            1 => Just(Step::Restart),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn no_interleaving_overspends(budget in budgets(), steps in steps()) {
            let mut account = Account::new("gr_1", budget);
            let mut running: Vec<Reservation> = Vec::new();
            let mut charged = Amounts::default();
            for step in steps {
                let pick = |n: usize, running: &[Reservation]| (!running.is_empty()).then(|| n % running.len().max(1));
                match step {
                    Step::Reserve(least, most) => match account.reserve(&least, &most) {
                        Ok(reservation) => {
                            prop_assert!(Meter::ALL.iter().all(|&m| reservation.held().get(m) >= least.get(m)));
                            running.push(reservation);
                        }
                        Err(no) => prop_assert_eq!(account.left().get(no.meter), Some(no.left)),
                    },
                    Step::Extend(n, more) => if let Some(n) = pick(n, &running) {
                        account.extend(&mut running[n], &more).expect("held");
                    },
                    Step::Settle(n, used) => if let Some(n) = pick(n, &running) {
                        let reservation = running.swap_remove(n);
                        let (held, within) = (reservation.held(), reservation.meter(&used));
                        let settled = account.settle(reservation, &used).expect("held");
                        charged = charged.plus(&settled.charged);
                        prop_assert_eq!(settled.charged.plus(&settled.over), used);
                        if matches!(within, Metered::Going(_)) {
                            prop_assert_eq!(settled.over, Amounts::default(), "what was reserved is there: {:?}", held);
                        }
                    },
                    Step::GiveBack(n) => if let Some(n) = pick(n, &running) {
                        let before = account.spent();
                        account.give_back(running.swap_remove(n)).expect("held");
                        prop_assert_eq!(account.spent(), before);
                    },
                    Step::Restart => {
                        let text = serde_json::to_string(&account).expect("json");
                        account = serde_json::from_str(&text).expect("the same");
                        charged = charged.plus(&account.charge_open());
                        for stale in running.drain(..) {
                            prop_assert_eq!(account.settle(stale, &Amounts::default()), Err(NotHeld));
                        }
                    }
                }
                let taken = account.spent().plus(&account.reserved());
                for meter in Meter::ALL {
                    if let Some(most) = budget.get(meter) {
                        prop_assert!(taken.get(meter) <= most, "{:?}", meter);
                        prop_assert_eq!(account.left().get(meter), Some(most - taken.get(meter)));
                    }
                }
                prop_assert_eq!(account.spent(), charged);
            }
        }

        #[test]
        fn every_type_survives_the_wire(budget in budgets(), used in amounts()) {
            let text = serde_json::to_string(&(budget, used)).expect("json");
            prop_assert_eq!(serde_json::from_str::<(Budget, Amounts)>(&text).expect("the same"), (budget, used));
            prop_assert_eq!(budget.strictest(&budget), budget);
        }
    }
}
