//! Descriptions of the words that are written and read by hand, for the API's own; the others derive theirs.

use super::{Amounts, Budget, Capability, CapabilitySet, Limit, Limits, Meter, Timestamp};
use std::borrow::Cow;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::{PartialSchema, ToSchema};

fn amount() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(0u64))
}

fn closed() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Object).additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

impl PartialSchema for Timestamp {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("A moment from 1970 to 9999 in RFC 3339."))
            .examples(["2026-01-30T12:00:00.000Z"])
            .into()
    }
}

impl ToSchema for Timestamp {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Timestamp")
    }
}

impl PartialSchema for Limits {
    fn schema() -> RefOr<Schema> {
        let whole = |object: ObjectBuilder, limit: &Limit| {
            object.property(limit.name(), amount().maximum(Some(limit.ceiling()))).required(limit.name())
        };
        Limit::ALL.iter().fold(closed(), whole).description(Some("Every limit with its amount.")).into()
    }
}

impl ToSchema for Limits {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Limits")
    }
}

impl PartialSchema for Amounts {
    fn schema() -> RefOr<Schema> {
        let all = |object: ObjectBuilder, meter: Meter| object.property(meter.name(), amount());
        Meter::ALL.into_iter().fold(closed(), all).description(Some("How much of each; what is left out is 0.")).into()
    }
}

impl ToSchema for Amounts {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Amounts")
    }
}

impl PartialSchema for Budget {
    fn schema() -> RefOr<Schema> {
        let maybe = || amount().schema_type(SchemaType::from_iter([Type::Integer, Type::Null]));
        let all = |object: ObjectBuilder, meter: Meter| object.property(meter.name(), maybe());
        let description = "The most of each; what is left out or null has no end.";
        Meter::ALL.into_iter().fold(closed(), all).description(Some(description)).into()
    }
}

impl ToSchema for Budget {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Budget")
    }
}

impl PartialSchema for CapabilitySet {
    fn schema() -> RefOr<Schema> {
        let words = Capability::ALL.iter().flat_map(|capability| {
            let name = capability.name();
            let operations = capability.operations().iter().map(move |operation| format!("{name}:{operation}"));
            std::iter::once(name.to_owned()).chain(operations)
        });
        let word = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words));
        ArrayBuilder::new()
            .items(word)
            .description(Some("`shell` is all of it, `filesystem:read` one operation."))
            .into()
    }
}

impl ToSchema for CapabilitySet {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("CapabilitySet")
    }
}
