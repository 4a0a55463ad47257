// Rows of tables and CSV from result lines, new ones or those of a journal.
#pragma once

#include <cstdint>
#include <string>

#include "tools/report/report.h"
#include "tools/report/validate.h"

namespace shardplan {

ResultSummary summary_of(const std::string& result_line);

// Whether it is what a run gave.
bool is_result_line(const std::string& text);

std::string validate_heading(Format format);
std::string validate_row(const std::string& result_line, std::int64_t line, Format format);

}  // namespace shardplan
