// Results, rows and machines in words.
#include "sframe/sframe.hpp"

namespace clew::sframe {
namespace {

std::string with_offset(std::string base, int32_t offset) {
  if (offset >= 0) base += '+';
  return base + std::to_string(offset);
}

std::string register_name(const Part& part, uint32_t reg) {
  if (reg == clew_sframe_sp(&part.header)) return "sp";
  if (reg == clew_sframe_fp(&part.header)) return "fp";
  return "r" + std::to_string(reg);
}

std::string describe_value(const Part& part, const clew_sframe_value& value) {
  switch (value.kind) {
    case CLEW_SFRAME_SAME:
      return "u";
    case CLEW_SFRAME_AT_CFA:
      return with_offset("c", value.offset);
    case CLEW_SFRAME_CFA_PLUS:
      return with_offset("=c", value.offset);
    case CLEW_SFRAME_AT_REGISTER:
      return "(" + with_offset(register_name(part, value.reg), value.offset) + ")";
    case CLEW_SFRAME_REGISTER_PLUS:
      return with_offset(register_name(part, value.reg), value.offset);
    case CLEW_SFRAME_REGISTER:
      return "r" + std::to_string(value.reg);
    default:
      return "f";
  }
}

}  // namespace

const char* describe(uint32_t result) {
  switch (result) {
    case CLEW_SFRAME_OK:
      return "sound";
    case CLEW_SFRAME_NOTHING:
      return "nothing is said";
    case CLEW_SFRAME_UNREADABLE:
      return "cannot be read";
    case CLEW_SFRAME_SHORT:
      return "shorter than a header";
    case CLEW_SFRAME_BAD_MAGIC:
      return "does not start with the magic number of SFrame";
    case CLEW_SFRAME_BAD_VERSION:
      return "unknown version";
    case CLEW_SFRAME_BAD_FLAGS:
      return "flags that this version does not have, or lacks one that it must have";
    case CLEW_SFRAME_BAD_ABI:
      return "unknown ABI, or not that of the machine";
    case CLEW_SFRAME_BAD_ORDER:
      return "its byte order is not that of its ABI or of the file";
    case CLEW_SFRAME_BAD_AUXILIARY:
      return "the auxiliary header reaches past the end";
    case CLEW_SFRAME_FUNCTIONS_OUTSIDE:
      return "the function table reaches past the end or into the rows";
    case CLEW_SFRAME_FUNCTIONS_UNFILLED:
      return "the function table does not reach up to the rows";
    case CLEW_SFRAME_ROWS_OUTSIDE:
      return "the rows reach past the end";
    case CLEW_SFRAME_NOT_SORTED:
      return "functions are out of order, although the header says that they are sorted";
    case CLEW_SFRAME_BAD_ROW_OFFSET:
      return "a function's rows lie outside the rows";
    case CLEW_SFRAME_BAD_ROW_COUNT:
      return "a function counts more rows than there are";
    case CLEW_SFRAME_BAD_ROW_TYPE:
      return "unknown row type of a function";
    case CLEW_SFRAME_BAD_FUNCTION_TYPE:
      return "unknown type of a function, or one that its ABI does not have";
    case CLEW_SFRAME_BAD_BLOCK:
      return "a function of repeated blocks of 0 bytes";
    case CLEW_SFRAME_WRAPS:
      return "a function ends behind the last address";
    case CLEW_SFRAME_ROW_OUTSIDE:
      return "a row reaches past the end of the rows";
    case CLEW_SFRAME_ROW_ORDER:
      return "a row does not start behind the one before it";
    case CLEW_SFRAME_BAD_WORD_SIZE:
      return "unknown word size of a row";
    case CLEW_SFRAME_BAD_WORD_COUNT:
      return "a row has too many words, too few, or one that belongs to nothing";
    case CLEW_SFRAME_BAD_CONTROL_WORD:
      return "a control word that means nothing";
    case CLEW_SFRAME_OFFSET_RANGE:
      return "an offset beyond 32 bits";
    default:
      return "unknown";
  }
}

std::string describe_cfa(const Part& part, const clew_sframe_row& row) {
  return describe_value(part, row.cfa);
}
std::string describe_fp(const Part& part, const clew_sframe_row& row) {
  // readelf has a letter for the return address alone.
  return row.fp.kind == CLEW_SFRAME_FIXED ? with_offset("c", row.fp.offset) : describe_value(part, row.fp);
}
std::string describe_ra(const Part& part, const clew_sframe_row& row) {
  return row.ra_empty ? "U" : describe_value(part, row.ra);
}

const char* abi_name(uint8_t abi) {
  switch (abi) {
    case CLEW_SFRAME_AMD64:
      return "amd64";
    case CLEW_SFRAME_AARCH64:
      return "aarch64";
    case CLEW_SFRAME_AARCH64_BIG:
      return "aarch64-be";
    case CLEW_SFRAME_S390X:
      return "s390x";
    default:
      return "unknown";
  }
}

}  // namespace clew::sframe
