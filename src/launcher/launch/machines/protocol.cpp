// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/protocol.h"

#include <signal.h>

#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr size_t kMaxName = 256;
constexpr size_t kMaxText = 8192;
constexpr size_t kMaxSummary = 24 * 1024;
constexpr size_t kMaxLines = 128;
constexpr size_t kMaxLine = 1024;
constexpr int kMaxRank = 1 << 20;

[[noreturn]] void refuse(const std::string& what) {
  throw CommError(str_cat(
      "[launch] the other program does not use the launch protocol: ",
      printable(what),
      "; check main_process_ip and main_process_port"));
}

std::string shortened(const std::string& text, size_t limit) {
  constexpr std::string_view kMark = "...";
  if (text.size() <= limit) {
    return text;
  }
  size_t end = limit - kMark.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end; // not in the middle of a character
  }
  return text.substr(0, end).append(kMark);
}

/// Reads members of one object and rejects everything unexpected. Strings are
/// made safe for terminals, and limited to `limit`.
class ObjectReader {
 public:
  explicit ObjectReader(const json& object) : object_(object) {}

  std::string text(
      const char* name,
      size_t limit,
      LineEnds line_ends = LineEnds::kQuoted) const {
    return harmless(member(name), name, limit, line_ends);
  }

  int number(const char* name, int least, int most) const {
    const json& value = member(name);
    // JSON compares signed and unsigned numbers differently.
    if (!value.is_number_integer() || value < least || value > most) {
      refuse(str_cat("'", name, "' is not between ", least, " and ", most));
    }
    return value.get<int>();
  }

  std::string digits(const char* name) const {
    std::string value = text(name, kMaxName);
    if (value.size() != kHandshakeDigits ||
        value.find_first_not_of("0123456789abcdef") != std::string::npos) {
      refuse(str_cat("'", name, "' is not ", kHandshakeDigits, " digits"));
    }
    return value;
  }

  bool boolean(const char* name) const {
    const json& value = member(name);
    if (!value.is_boolean()) {
      refuse(str_cat("'", name, "' is not true or false"));
    }
    return value.get<bool>();
  }

  std::vector<std::string> lines(const char* name) const {
    const json& value = member(name);
    if (!value.is_array() || value.size() > kMaxLines) {
      refuse(str_cat("'", name, "' is not a list, or is too long"));
    }
    std::vector<std::string> result;
    for (const auto& line : value) {
      result.push_back(harmless(line, name, kMaxLine, LineEnds::kQuoted));
    }
    return result;
  }

  std::map<std::string, std::string> texts(const char* name) const {
    const json& value = member(name);
    if (!value.is_object() || value.size() > kMaxLines) {
      refuse(str_cat("'", name, "' is not an object, or is too long"));
    }
    std::map<std::string, std::string> result;
    for (const auto& [key, entry] : value.items()) {
      const std::string shown = shortened(printable(key), kMaxName);
      result[shown] = harmless(entry, name, kMaxText, LineEnds::kQuoted);
    }
    return result;
  }

 private:
  static std::string harmless(
      const json& value,
      const char* name,
      size_t limit,
      LineEnds line_ends) {
    if (!value.is_string()) {
      refuse(str_cat("'", name, "' contains something other than strings"));
    }
    const auto& text = value.get_ref<const std::string&>();
    return shortened(printable(text, line_ends), limit);
  }

  const json& member(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) {
      refuse(str_cat("'", name, "' is missing"));
    }
    return *found;
  }

  const json& object_;
};

/// Shortens a worker's output until the frame fits.
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
          "[launch] a message to another machine has ",
          text.size(),
          " bytes, but at most ",
          kMaxFrameBytes,
          " are allowed; shorten the program's arguments"));
    }
  }
}

json to_json(const ChallengeRequestMessage& m) {
  return {{"type", "knock"}, {"protocol", m.protocol}, {"number", m.number}};
}
json to_json(const ChallengeMessage& m) {
  return {{"type", "challenge"}, {"number", m.number}};
}
json to_json(const ProofMessage& m) {
  return {{"type", "proof"}, {"proof", m.proof}};
}
json to_json(const HelloMessage& m) {
  json problems = json::array();
  for (const auto& problem : m.problems) {
    problems.push_back(shortened(problem, kMaxLine));
  }
  return {
      {"type", "hello"},
      {"version", m.version},
      {"machine_rank", m.machine_rank},
      {"host", m.host},
      {"num_local", m.num_local},
      {"devices", shortened(m.devices, kMaxName)},
      {"problems", problems},
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
      {"group_rank", m.order.group_rank},
      {"group_world_size", m.order.group_world_size},
      {"max_restarts", m.order.max_restarts},
      {"master_port", m.order.master_port},
      {"run_id", m.order.run_id},
      {"roll", shortened(m.roll, kMaxText)}};
}
json to_json(const StopMessage& m) {
  return {
      {"type", "stop"},
      {"signal", m.order.signal},
      {"is_to_restart", m.order.is_to_restart},
      {"is_request", m.order.is_request}};
}
json to_json(const EndMessage& m) {
  return {
      {"type", "end"},
      {"exit_code", m.ending.exit_code},
      {"summary", shortened(m.ending.summary, kMaxSummary)}};
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
json to_json(const StoppedMessage& m) {
  return {
      {"type", "stopped"},
      {"is_any_preempted", m.exit_summary.is_any_preempted},
      {"is_orderly", m.exit_summary.is_orderly}};
}
json to_json(const InterruptedMessage& m) {
  return {{"type", "interrupted"}, {"signal", m.signal}};
}
json to_json(const SignalMessage& m) {
  return {{"type", "signal"}, {"signal", m.signal}};
}
json to_json(const AliveMessage&) {
  return {{"type", "alive"}};
}

Message read_challenge_request(const ObjectReader& in) {
  ChallengeRequestMessage m;
  // The protocol version is read first, because another version may have other
  // members.
  m.protocol = in.number("protocol", 0, 1 << 30);
  if (m.protocol == kProtocolVersion) {
    m.number = in.digits("number");
  }
  return m;
}

Message read_hello(const ObjectReader& in) {
  HelloMessage m;
  m.version = in.text("version", kMaxName);
  m.machine_rank = in.number("machine_rank", kAnyMachine, kMaxRank);
  m.host = in.text("host", kMaxName);
  m.num_local = in.number("num_local", 1, kMaxRank);
  m.devices = in.text("devices", kMaxName);
  m.problems = in.lines("problems");
  m.agreement = in.texts("agreement");
  return m;
}

Message read_start(const ObjectReader& in) {
  StartMessage m;
  m.order.attempt = in.number("attempt", 0, 1 << 30);
  m.order.first_rank = in.number("first_rank", 0, kMaxRank);
  m.order.world_size = in.number("world_size", 1, kMaxRank);
  m.order.group_rank = in.number("group_rank", 0, kMaxRank);
  m.order.group_world_size = in.number("group_world_size", 1, kMaxRank);
  m.order.max_restarts = in.number("max_restarts", 0, 1 << 30);
  m.order.master_port = in.number("master_port", 1, 65535);
  m.order.run_id = in.text("run_id", kMaxName);
  m.roll = in.text("roll", kMaxText, LineEnds::kKept);
  return m;
}

Message read_failed(const ObjectReader& in) {
  FailedMessage m;
  m.report.rank = in.number("rank", 0, kMaxRank);
  m.report.host = in.text("host", kMaxName);
  m.report.exit_code = in.number("exit_code", 1, 255);
  m.report.how = in.text("how", kMaxLine);
  m.report.last_lines = in.lines("last_lines");
  return m;
}

// Accepts only signals that end no process.
Message read_signal(const ObjectReader& in) {
  const int signal = in.number("signal", 1, SIGRTMAX);
  if (signal != SIGUSR1 && signal != SIGUSR2) {
    refuse(str_cat("signal ", signal, " is not forwarded"));
  }
  return SignalMessage{signal};
}

using Reader = Message (*)(const ObjectReader&);
const std::map<std::string, Reader, std::less<>>& readers() {
  static const std::map<std::string, Reader, std::less<>> table = {
      {"knock", read_challenge_request},
      {"challenge",
       [](auto& in) -> Message {
         return ChallengeMessage{in.digits("number")};
       }},
      {"proof",
       [](auto& in) -> Message { return ProofMessage{in.digits("proof")}; }},
      {"hello", read_hello},
      {"accepted", [](auto&) -> Message { return AcceptedMessage{}; }},
      {"refused",
       [](auto& in) -> Message {
         return RefusedMessage{in.text("reason", kMaxText)};
       }},
      {"start", read_start},
      {"stop",
       [](auto& in) -> Message {
         return StopMessage{
             {in.number("signal", 1, SIGRTMAX),
              in.boolean("is_to_restart"),
              in.boolean("is_request")}};
       }},
      {"end",
       [](auto& in) -> Message {
         return EndMessage{
             {in.number("exit_code", 0, 255),
              in.text("summary", kMaxSummary, LineEnds::kKept)}};
       }},
      {"failed", read_failed},
      {"cannot_start",
       [](auto& in) -> Message {
         return CannotStartMessage{
             in.text("reason", kMaxText, LineEnds::kKept)};
       }},
      {"finished", [](auto&) -> Message { return FinishedMessage{}; }},
      {"stopped",
       [](auto& in) -> Message {
         return StoppedMessage{
             {in.boolean("is_any_preempted"), in.boolean("is_orderly")}};
       }},
      {"interrupted",
       [](auto& in) -> Message {
         return InterruptedMessage{in.number("signal", 1, SIGRTMAX)};
       }},
      {"signal", read_signal},
      {"alive", [](auto&) -> Message { return AliveMessage{}; }},
  };
  return table;
}

} // namespace

std::string encode_payload(const Message& message) {
  return dump_to_fit(
      std::visit([](const auto& m) { return to_json(m); }, message));
}

std::string frame_of(const std::string& payload) {
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
  const std::string type = in.text("type", kMaxName);
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
    refuse(str_cat(
        "a frame has ", size, " bytes, but at most ", limit_, " are allowed"));
  }
  if (bytes_.size() < 4 + size) {
    return std::nullopt;
  }
  std::string payload = bytes_.substr(4, size);
  bytes_.erase(0, 4 + size);
  return payload;
}

} // namespace accelerate
