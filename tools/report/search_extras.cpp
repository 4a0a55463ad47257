#include "tools/report/search_extras.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/commands/sweep.h"
#include "tools/report/csv.h"
#include "tools/report/json.h"
#include "tools/report/text.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

std::string family_reason(const PlanFamily& family) {
  std::string text = family.reason;
  if (family.least_bytes > 0) {
    text.append(": at least ").append(gib(family.least_bytes)).append(" GiB allocated");
  }
  return text.append(family.nearest.empty()
                         ? "; no value passes"
                         : "; " + family.axis + " " + family.nearest + " passes");
}

void add_headroom(const std::vector<Headroom>& headroom, Table& search_table) {
  for (const char* name : {"headroom_bytes", "largest_micro_batch", "largest_sequence_length"}) {
    search_table.columns.emplace_back(name);
  }
  for (std::size_t i = 0; i < headroom.size(); ++i) {
    search_table.rows[i].emplace_back(headroom[i].left_bytes);
    search_table.rows[i].emplace_back(headroom[i].largest_micro_batch);
    search_table.rows[i].emplace_back(headroom[i].largest_sequence_length);
  }
}

void add_families(const std::vector<PlanFamily>& families, Table& search_table) {
  name_ranked_rows(search_table);
  const std::size_t first = search_table.columns.size();
  for (const char* name :
       {"axis", "value", "plans", "fitting", "reason", "least_allocated", "nearest"}) {
    search_table.columns.emplace_back(name);
  }
  const auto speed = std::ranges::find(search_table.columns, "tokens_per_s_per_gpu");
  const std::size_t speed_column = static_cast<std::size_t>(speed - search_table.columns.begin());
  for (const PlanFamily& family : families) {
    std::vector<Cell> row(first);
    row.front() = std::string("family");
    if (family.fitting > 0) {
      row[speed_column] = family.best_tokens_per_s_per_gpu;
    }
    for (const Cell& cell : std::vector<Cell>{
             family.axis, family.value, family.plans, family.fitting, family.reason,
             family.least_bytes > 0 ? Cell(family.least_bytes) : Cell(), family.nearest}) {
      row.push_back(cell);
    }
    search_table.rows.push_back(std::move(row));
  }
}

}  // namespace

std::string whole_cell(double value) {
  return value > 0 ? whole(value) : "";
}

std::string extras_text(const SearchExtras& extras) {
  std::string text;
  if (!extras.headroom.empty()) {
    Table table = {.columns = {"rank", "left GiB", "largest micro_batch", "largest sequence"}};
    std::int64_t rank = 0;
    for (const Headroom& headroom : extras.headroom) {
      table.rows.push_back({++rank, gib(headroom.left_bytes), headroom.largest_micro_batch,
                            grouped(headroom.largest_sequence_length)});
    }
    text.append("\nHeadroom under the limit, and what would use it, each alone\n");
    text.append(table_text(table));
  }
  if (!extras.families.empty()) {
    Table table = {.columns = {"axis", "value", "plans", "fit", "tokens/s/GPU", "why not"}};
    for (const PlanFamily& family : extras.families) {
      table.rows.push_back({family.axis, family.value, family.plans, family.fitting,
                            whole_cell(family.best_tokens_per_s_per_gpu),
                            family.fitting > 0 ? std::string() : family_reason(family)});
    }
    text.append("\nFamilies: one value of an axis, all others free\n").append(table_text(table));
  }
  return text;
}

void name_ranked_rows(Table& search_table) {
  if (search_table.columns.front() == "list") {
    return;
  }
  search_table.columns.insert(search_table.columns.begin(), "list");
  for (std::vector<Cell>& row : search_table.rows) {
    row.insert(row.begin(), std::string("ranked"));
  }
}

void add_extras(const SearchExtras& extras, Table& search_table) {
  if (!extras.headroom.empty()) {
    add_headroom(extras.headroom, search_table);
  }
  if (!extras.families.empty()) {
    add_families(extras.families, search_table);
  }
  for (std::vector<Cell>& row : search_table.rows) { row.resize(search_table.columns.size()); }
}

std::string with_extras(const SearchExtras& extras, const std::string& search_json) {
  if (extras.headroom.empty() && extras.families.empty()) {
    return search_json;
  }
  Json root = Json::parse(search_json);
  Json headroom = Json::array();
  for (const Headroom& of_plan : extras.headroom) {
    headroom.push_back({{"left_bytes", of_plan.left_bytes},
                        {"largest_micro_batch", of_plan.largest_micro_batch},
                        {"largest_sequence_length", of_plan.largest_sequence_length}});
  }
  Json families = Json::array();
  for (const PlanFamily& family : extras.families) {
    families.push_back({{"axis", family.axis},
                        {"value", family.value},
                        {"plans", family.plans},
                        {"fitting", family.fitting},
                        {"best_tokens_per_s_per_gpu", family.best_tokens_per_s_per_gpu},
                        {"reason", family.reason},
                        {"least_bytes", family.least_bytes},
                        {"nearest", family.nearest}});
  }
  root["headroom"] = std::move(headroom);
  root["families"] = std::move(families);
  return one_line_of(root);
}

}  // namespace shardplan
