//! Lists: conditions that are added one by one, newest first, one page at a time.

use super::LedgerError;
use crate::model::Owner;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter, types::Value};

/// Conditions of a query, and the values of their question marks.
pub(super) struct Wheres {
    sql: String,
    values: Vec<Value>,
}

impl Wheres {
    /// Only what is this owner's.
    pub(super) fn of(owner: &Owner) -> Self {
        let values = vec![Value::Text(owner.tenant.clone()), Value::Text(owner.subject.clone())];
        Self { sql: "tenant = ? AND subject = ?".to_owned(), values }
    }

    /// And this, which has as many question marks as there are values.
    pub(super) fn and(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        self.sql.push_str(" AND ");
        self.sql.push_str(condition);
        self.values.extend(values);
    }

    /// And older than the row whose `column` is `cursor`. False if this owner has no such row: a cursor of somebody
    /// else's list is not found, like everything else of theirs.
    pub(super) fn after(
        &mut self,
        connection: &Connection,
        table: &str,
        column: &str,
        owner: &Owner,
        cursor: &str,
    ) -> Result<bool, LedgerError> {
        let sql = format!("SELECT seq FROM {table} WHERE {column} = ?1 AND tenant = ?2 AND subject = ?3");
        let found = connection
            .prepare_cached(&sql)?
            .query_row([cursor, &owner.tenant, &owner.subject], |row| row.get::<_, i64>(0))
            .optional()?;
        if let Some(seq) = found {
            self.and("seq < ?", [Value::Integer(seq)]);
        }
        Ok(found.is_some())
    }

    /// At most `limit` rows, newest first, and whether there are more.
    pub(super) fn page<T>(
        self,
        connection: &Connection,
        table: &str,
        columns: &str,
        limit: usize,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<(Vec<T>, bool), LedgerError> {
        // One more than asked for tells whether there is a next page.
        let sql = format!(
            "SELECT {columns} FROM {table} WHERE {} ORDER BY seq DESC LIMIT {}",
            self.sql,
            limit.saturating_add(1)
        );
        let mut statement = connection.prepare(&sql)?;
        let mut items = statement.query_map(params_from_iter(self.values), read)?.collect::<Result<Vec<_>, _>>()?;
        let more = items.len() > limit;
        items.truncate(limit);
        Ok((items, more))
    }
}
