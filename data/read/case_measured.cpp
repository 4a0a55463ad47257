#include "data/read/case_measured.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/read/case_members.h"

namespace shardplan {

namespace {

constexpr std::int64_t kMaxMeasured = std::int64_t{1} << 60;  // bytes or elements
constexpr double kMaxSeconds = 1e9;
constexpr std::array<std::string_view, 3> kMemoryGrades = {"A", "B", "C"};

struct RankField {
  std::string_view name;
  std::optional<std::int64_t> MeasuredRank::*member;
};
constexpr std::array kRankFields = std::to_array<RankField>({
    {"parameters", &MeasuredRank::parameters},
    {"allocated_after_init", &MeasuredRank::allocated_after_init},
    {"peak_allocated_first_step", &MeasuredRank::peak_allocated_first_step},
    {"peak_allocated_steady", &MeasuredRank::peak_allocated_steady},
    {"peak_allocated", &MeasuredRank::peak_allocated},
    {"peak_reserved", &MeasuredRank::peak_reserved},
    {"allocated_between_steps", &MeasuredRank::allocated_between_steps},
    {"device_used_end", &MeasuredRank::device_used_end},
    {"reserved_end", &MeasuredRank::reserved_end},
    {"context", &MeasuredRank::context},
    {"device_total", &MeasuredRank::device_total},
    {"allocation_retries", &MeasuredRank::allocation_retries},
});

MeasuredRank read_rank(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  MeasuredRank rank;
  rank.is_largest = !reader.has("rank") && !reader.has("pp_rank");
  if (!rank.is_largest) {
    rank.rank = reader.integer("rank", 0, kMaxDegree);
    rank.pp_rank = reader.integer("pp_rank", 0, kMaxDegree);
  }
  for (const RankField& field : kRankFields) {
    if (is_given(reader, field.name)) {
      rank.*(field.member) = reader.integer(field.name, 0, kMaxMeasured);
    }
    reader.ignore(field.name);
  }
  for (const char* key : {"device", "persistent_arena", "dynamic_arena", "libraries",
                          "communicators", "communicators_by_group", "growth", "unattributed"}) {
    reader.ignore(key);  // how validate takes device_used_end apart
  }
  reader.finish();
  return rank;
}

const JsonValue& array_of(ObjectReader& reader, std::string_view key) {
  const JsonValue& value = reader.value(key);
  if (value.kind != JsonKind::kArray) {
    throw reader.error(key, "found " + describe(value) + ", expected an array");
  }
  return value;
}

}  // namespace

Measurement read_measured(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  Measurement measured;
  measured.status = choice<RunStatus>(reader, "status");
  if (is_given(reader, "step_times_s")) {
    for (const JsonValue& item : array_of(reader, "step_times_s").items) {
      const bool is_number = item.kind == JsonKind::kInteger || item.kind == JsonKind::kReal;
      if (!is_number || item.real <= 0 || item.real > kMaxSeconds) {
        throw InputError(place_of(item, file) + "found " + describe(item) +
                         ", expected seconds above 0");
      }
      measured.step_times_s.push_back(item.real);
    }
  }
  if (is_given(reader, "tokens_per_s_per_gpu")) {
    measured.tokens_per_s_per_gpu = reader.number("tokens_per_s_per_gpu", 0, 1e12);
  }
  if (is_given(reader, "memory_grade")) {
    measured.memory_grade = reader.string("memory_grade");
    if (std::ranges::find(kMemoryGrades, measured.memory_grade) == kMemoryGrades.end()) {
      throw reader.error("memory_grade",
                         "found \"" + measured.memory_grade + "\", expected A, B or C");
    }
  }
  if (is_given(reader, "ranks")) {
    for (const JsonValue& item : array_of(reader, "ranks").items) {
      measured.ranks.push_back(read_rank(item, file));
    }
  }
  for (const char* key : {"step_times_s", "tokens_per_s_per_gpu", "memory_grade", "ranks"}) {
    reader.ignore(key);  // null: not measured
  }
  for (const char* key :
       {"reason", "failed", "positions", "restarted_workers", "compute_times_s", "losses",
        "gradient_norms", "host_losses", "loss_error", "loss_tolerance", "host_gradient_norms",
        "gradient_norm_error", "gradient_norm_tolerance", "find_max", "run"}) {
    reader.ignore(key);  // what else validate says about a run
  }
  reader.finish();
  return measured;
}

}  // namespace shardplan
