// Answers as CSV: columns in a fixed order, bytes and seconds, one row per stage or per plan.
#pragma once

#include "tools/report/report.h"
#include "tools/report/table.h"

namespace shardplan {

Table estimate_table(const EstimateReport& report);
Table search_table(const SearchReport& report);
Table batch_table(const BatchAnswer& answer);  // one row per stage

// RFC 4180 with LF. Text that begins with = + - @ tab or CR is written behind a single quote, so
// that no spreadsheet takes it for a formula; numbers are never touched.
std::string csv_text(const Table& table);
std::string csv_header(const Table& table);
std::string csv_rows(const Table& table);

}  // namespace shardplan
