//! What budgets count, and how much of each.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
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

/// In the order of [`Meter::ALL`].
impl<T> From<[T; Meter::ALL.len()]> for PerMeter<T> {
    fn from(values: [T; Meter::ALL.len()]) -> Self {
        Self(values)
    }
}

impl Amounts {
    /// Both together; a sum that can't be counted is the largest that can.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
