#include "data/frameworks/host_numbers.h"

#include <memory>
#include <span>
#include <string_view>
#include <variant>

#include "data/read/provenance.h"
#include "estimator/frameworks/framework.h"
#include "estimator/plan/host_table.h"

namespace shardplan {
namespace {

// {"forward": 830, "backward": 1330}, of which a factor may leave a part.
HostCost read_microseconds(const JsonValue& value, const std::string& file, double factor) {
  constexpr double kMost = 1e6;
  ObjectReader reader(value, file);
  const HostCost cost = {.forward_s = factor * reader.number("forward", 0, kMost) * kMicro,
                         .backward_s = factor * reader.number("backward", 0, kMost) * kMicro};
  reader.finish();
  return cost;
}

double read_plain_number(ObjectReader& reader, const HostNumber& number) {
  return number.is_seconds ? reader.number("microseconds", 0, 1e6) * kMicro
                           : reader.number("value", 1e-3, 1e3);
}

Provenance read_number(const HostNumber& number, const JsonValue& value, const std::string& file,
                       HostTable& table) {
  ObjectReader reader(value, file);
  if (const auto* cost = std::get_if<HostCost HostTable::*>(&number.member)) {
    const double factor = reader.number_or("factor", 1, 0, 1);
    table.*(*cost) = read_microseconds(reader.value("microseconds"), file, factor);
  } else {
    table.*std::get<double HostTable::*>(number.member) = read_plain_number(reader, number);
  }
  Provenance provenance = read_provenance(reader);
  reader.finish();
  return provenance;
}

void read_table(std::string_view key, ObjectReader& reader, const std::string& file,
                std::span<const HostNumber> numbers, bool is_version, HostTable& table,
                Provenances& provenances) {
  if (numbers.empty() || (is_version && !reader.has(key))) {
    return;
  }
  ObjectReader members(reader.value(key), file);
  for (const HostNumber& number : numbers) {
    if (!is_version || members.has(number.name)) {
      provenances.insert_or_assign(std::string(key) + "/" + std::string(number.name),
                                   read_number(number, members.value(number.name), file, table));
    }
  }
  members.finish();
}

}  // namespace

void read_host_numbers(ObjectReader& reader, const std::string& file, FrameworkProfile& profile,
                       Provenances& provenances) {
  const HostLaunches& launches = framework_of(profile).kernels.host;
  if (launches.numbers.empty()) {
    return;
  }
  const bool is_version = profile.host != nullptr;
  HostTables tables = is_version ? *profile.host : HostTables{};
  read_table("host", reader, file, launches.numbers, is_version, tables.eager, provenances);
  read_table("compiled_host", reader, file, launches.compiled_numbers, is_version, tables.compiled,
             provenances);
  profile.host = std::make_shared<const HostTables>(tables);
}

}  // namespace shardplan
