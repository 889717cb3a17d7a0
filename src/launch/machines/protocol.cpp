// SPDX-License-Identifier: Apache-2.0
#include "launch/machines/protocol.h"

#include <signal.h>

#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr size_t kMaxText = 8192;
constexpr size_t kMaxLines = 32;
constexpr size_t kMaxLine = 1024;
constexpr int kMaxRank = 1 << 20;

[[noreturn]] void refuse(const std::string& what) {
  throw CommError(str_cat(
      "[launch] the other side does not speak the launch protocol: ",
      what,
      "; check main_process_ip and main_process_port"));
}

std::string shortened(const std::string& text, size_t limit) {
  return text.size() <= limit ? text : text.substr(0, limit) + "...";
}

/// Reads members of one object and refuses everything unexpected.
class ObjectReader {
 public:
  explicit ObjectReader(const json& object) : object_(object) {}

  std::string text(const char* name, size_t limit = kMaxFrameBytes) const {
    const json& value = member(name);
    if (!value.is_string() ||
        value.get_ref<const std::string&>().size() > limit) {
      refuse(str_cat("'", name, "' is not a text of at most ", limit));
    }
    return value.get<std::string>();
  }

  int number(const char* name, int least, int most) const {
    const json& value = member(name);
    // Signed and unsigned numbers compare differently in JSON.
    if (!value.is_number_integer() || value < least || value > most) {
      refuse(str_cat("'", name, "' is not between ", least, " and ", most));
    }
    return value.get<int>();
  }

  bool boolean(const char* name) const {
    const json& value = member(name);
    if (!value.is_boolean()) {
      refuse(str_cat("'", name, "' is neither true nor false"));
    }
    return value.get<bool>();
  }

  std::vector<std::string> lines(const char* name) const {
    const json& value = member(name);
    if (!value.is_array() || value.size() > kMaxLines) {
      refuse(str_cat("'", name, "' is not a short list"));
    }
    std::vector<std::string> result;
    for (const auto& line : value) {
      if (!line.is_string()) {
        refuse(str_cat("'", name, "' holds something else than text"));
      }
      result.push_back(line.get<std::string>());
    }
    return result;
  }

  std::map<std::string, std::string> texts(const char* name) const {
    const json& value = member(name);
    if (!value.is_object() || value.size() > kMaxLines) {
      refuse(str_cat("'", name, "' is not a small table"));
    }
    std::map<std::string, std::string> result;
    for (const auto& [key, entry] : value.items()) {
      if (!entry.is_string()) {
        refuse(str_cat("'", name, "' holds something else than text"));
      }
      result[key] = entry.get<std::string>();
    }
    return result;
  }

 private:
  const json& member(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) {
      refuse(str_cat("'", name, "' is missing"));
    }
    return *found;
  }

  const json& object_;
};

/// Shortens what a worker wrote until the frame fits.
std::string dump_to_fit(json object) {
  while (true) {
    // Workers may write any bytes to their stderr.
    std::string text =
        object.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() <= kMaxFrameBytes) {
      return text;
    }
    if (object.contains("last_lines") && !object["last_lines"].empty()) {
      object["last_lines"].erase(0);
    } else if (object.contains("summary")) {
      const auto summary = object["summary"].get<std::string>();
      object["summary"] = shortened(summary, summary.size() / 2);
    } else {
      throw CommError(str_cat(
          "[launch] a message of ",
          text.size(),
          " bytes to another machine, at most ",
          kMaxFrameBytes,
          " allowed; shorten the program's arguments"));
    }
  }
}

json to_json(const HelloMessage& m) {
  return {
      {"type", "hello"},
      {"protocol", m.protocol},
      {"version", m.version},
      {"token", m.token},
      {"machine_rank", m.machine_rank},
      {"host", m.host},
      {"num_local", m.num_local},
      {"devices", shortened(m.devices, 200)},
      {"agreement", m.agreement}};
}
json to_json(const AcceptedMessage&) {
  return {{"type", "accepted"}};
}
json to_json(const RefusedMessage& m) {
  return {{"type", "refused"}, {"reason", shortened(m.reason, kMaxText)}};
}
json to_json(const StartMessage& m) {
  return {
      {"type", "start"},
      {"attempt", m.order.attempt},
      {"first_rank", m.order.first_rank},
      {"world_size", m.order.world_size},
      {"max_restarts", m.order.max_restarts},
      {"master_port", m.order.master_port},
      {"run_id", m.order.run_id},
      {"roll", shortened(m.roll, kMaxText)}};
}
json to_json(const StopMessage& m) {
  return {
      {"type", "stop"},
      {"signal", m.signal},
      {"is_to_restart", m.is_to_restart}};
}
json to_json(const EndMessage& m) {
  return {
      {"type", "end"},
      {"exit_code", m.ending.exit_code},
      {"summary", m.ending.summary}};
}
json to_json(const FailedMessage& m) {
  json lines = json::array();
  for (const auto& line : m.report.last_lines) {
    lines.push_back(shortened(line, kMaxLine));
  }
  return {
      {"type", "failed"},
      {"rank", m.report.rank},
      {"host", m.report.host},
      {"exit_code", m.report.exit_code},
      {"how", m.report.how},
      {"last_lines", lines}};
}
json to_json(const CannotStartMessage& m) {
  return {{"type", "cannot_start"}, {"reason", shortened(m.reason, kMaxText)}};
}
json to_json(const FinishedMessage&) {
  return {{"type", "finished"}};
}
json to_json(const StoppedMessage&) {
  return {{"type", "stopped"}};
}
json to_json(const InterruptedMessage& m) {
  return {{"type", "interrupted"}, {"signal", m.signal}};
}
json to_json(const AliveMessage&) {
  return {{"type", "alive"}};
}

Message read_hello(const ObjectReader& in) {
  HelloMessage m;
  // Read first: another version may have other members.
  m.protocol = in.number("protocol", 0, 1 << 30);
  m.version = in.text("version", 64);
  m.token = in.text("token", 256);
  if (m.protocol != kProtocolVersion) {
    return m;
  }
  m.machine_rank = in.number("machine_rank", 0, kMaxRank);
  m.host = in.text("host", 256);
  m.num_local = in.number("num_local", 1, kMaxRank);
  m.devices = in.text("devices", 256);
  m.agreement = in.texts("agreement");
  return m;
}

Message read_start(const ObjectReader& in) {
  StartMessage m;
  m.order.attempt = in.number("attempt", 0, 1 << 30);
  m.order.first_rank = in.number("first_rank", 0, kMaxRank);
  m.order.world_size = in.number("world_size", 1, kMaxRank);
  m.order.max_restarts = in.number("max_restarts", 0, 1 << 30);
  m.order.master_port = in.number("master_port", 1, 65535);
  m.order.run_id = in.text("run_id", 256);
  m.roll = in.text("roll");
  return m;
}

Message read_failed(const ObjectReader& in) {
  FailedMessage m;
  m.report.rank = in.number("rank", 0, kMaxRank);
  m.report.host = in.text("host", 256);
  m.report.exit_code = in.number("exit_code", 1, 255);
  m.report.how = in.text("how", 1024);
  m.report.last_lines = in.lines("last_lines");
  return m;
}

using Reader = Message (*)(const ObjectReader&);
const std::map<std::string, Reader, std::less<>>& readers() {
  static const std::map<std::string, Reader, std::less<>> table = {
      {"hello", read_hello},
      {"accepted", [](auto&) -> Message { return AcceptedMessage{}; }},
      {"refused",
       [](auto& in) -> Message { return RefusedMessage{in.text("reason")}; }},
      {"start", read_start},
      {"stop",
       [](auto& in) -> Message {
         return StopMessage{
             in.number("signal", 1, SIGRTMAX), in.boolean("is_to_restart")};
       }},
      {"end",
       [](auto& in) -> Message {
         return EndMessage{
             {in.number("exit_code", 0, 255), in.text("summary")}};
       }},
      {"failed", read_failed},
      {"cannot_start",
       [](auto& in) -> Message {
         return CannotStartMessage{in.text("reason")};
       }},
      {"finished", [](auto&) -> Message { return FinishedMessage{}; }},
      {"stopped", [](auto&) -> Message { return StoppedMessage{}; }},
      {"interrupted",
       [](auto& in) -> Message {
         return InterruptedMessage{in.number("signal", 1, SIGRTMAX)};
       }},
      {"alive", [](auto&) -> Message { return AliveMessage{}; }},
  };
  return table;
}

} // namespace

std::string encode_frame(const Message& message) {
  const json object =
      std::visit([](const auto& m) { return to_json(m); }, message);
  const std::string payload = dump_to_fit(object);
  const auto size = static_cast<uint32_t>(payload.size());
  std::string frame;
  for (const int shift : {24, 16, 8, 0}) {
    frame += static_cast<char>((size >> shift) & 0xFF);
  }
  return frame + payload;
}

Message decode_payload(std::string_view payload) {
  const json object = json::parse(payload, nullptr, false);
  if (!object.is_object()) {
    refuse("a frame is not a JSON object");
  }
  const ObjectReader in(object);
  const std::string type = in.text("type", 32);
  const auto found = readers().find(type);
  if (found == readers().end()) {
    refuse(str_cat("unknown type '", type, "'"));
  }
  return found->second(in);
}

std::optional<std::string> FrameReader::next() {
  if (bytes_.size() < 4) {
    return std::nullopt;
  }
  size_t size = 0;
  for (int i = 0; i < 4; ++i) {
    size =
        size << 8 | static_cast<unsigned char>(bytes_[static_cast<size_t>(i)]);
  }
  if (size == 0 || size > limit_) {
    refuse(
        str_cat("a frame of ", size, " bytes, at most ", limit_, " allowed"));
  }
  if (bytes_.size() < 4 + size) {
    return std::nullopt;
  }
  std::string payload = bytes_.substr(4, size);
  bytes_.erase(0, 4 + size);
  return payload;
}

} // namespace accelerate
