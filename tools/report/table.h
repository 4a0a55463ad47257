// Rows with named columns: what `list` shows and what every CSV is made of.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace shardplan {

// Nothing, a count or bytes, a number, text. Text that a user supplied is only ever a string.
using Cell = std::variant<std::monostate, std::int64_t, double, std::string>;

struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows = {};
};

// Aligned columns for people: numbers right, words left.
std::string table_text(const Table& table);

}  // namespace shardplan
