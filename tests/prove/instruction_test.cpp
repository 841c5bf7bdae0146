// What decides about the shadow stack, of instructions as gas encodes them.
#include "prove/instruction.hpp"

#include <gtest/gtest.h>

#include <initializer_list>

namespace clew::prove {
namespace {

Instruction of(std::initializer_list<unsigned char> bytes) {
  std::vector<std::byte> code;
  for (unsigned char byte : bytes) code.push_back(std::byte{byte});
  auto instruction = decode(code);
  EXPECT_TRUE(instruction);
  EXPECT_EQ(instruction->length, bytes.size());
  return instruction.value_or(Instruction{});
}

TEST(InstructionTest, Flow) {
  EXPECT_EQ(of({0xe8, 0, 0, 0, 0}).flow, Flow::kCall);
  EXPECT_EQ(of({0xff, 0xd0}).flow, Flow::kCall);  // call *%rax
  EXPECT_EQ(of({0xc3}).flow, Flow::kReturn);
  EXPECT_EQ(of({0xf2, 0xc3}).flow, Flow::kReturn);  // bnd ret
  EXPECT_EQ(of({0xc2, 8, 0}).flow, Flow::kReturn);  // ret $8
  EXPECT_EQ(of({0xeb, 0}).flow, Flow::kJump);
  EXPECT_EQ(of({0x74, 0}).flow, Flow::kJump);                               // je
  EXPECT_EQ(of({0xff, 0xe0}).flow, Flow::kIndirectJump);                    // jmp *%rax
  EXPECT_EQ(of({0xf2, 0xff, 0x25, 0, 0, 0, 0}).flow, Flow::kIndirectJump);  // bnd jmp *0(%rip)
  EXPECT_EQ(of({0x0f, 0x05}).flow, Flow::kSyscall);
  EXPECT_EQ(of({0x90}).flow, Flow::kStraight);
}

TEST(InstructionTest, LoadedStackPointers) {
  EXPECT_TRUE(of({0x48, 0x89, 0xec}).moves_stack);            // mov %rbp, %rsp
  EXPECT_TRUE(of({0x48, 0x8b, 0x66, 0x10}).moves_stack);      // mov 16(%rsi), %rsp
  EXPECT_TRUE(of({0x48, 0x94}).moves_stack);                  // xchg %rax, %rsp
  EXPECT_TRUE(of({0x5c}).moves_stack);                        // pop %rsp
  EXPECT_TRUE(of({0xc9}).moves_stack);                        // leave
  EXPECT_TRUE(of({0x48, 0x8d, 0x65, 0xf0}).moves_stack);      // lea -16(%rbp), %rsp
  EXPECT_FALSE(of({0x48, 0x8d, 0x64, 0x24, 8}).moves_stack);  // lea 8(%rsp), %rsp
  EXPECT_FALSE(of({0x48, 0x83, 0xec, 8}).moves_stack);        // sub $8, %rsp
  EXPECT_FALSE(of({0x48, 0x83, 0xe4, 0xf0}).moves_stack);     // and $-16, %rsp
  EXPECT_FALSE(of({0x55}).moves_stack);                       // push %rbp
  EXPECT_FALSE(of({0x54}).moves_stack);                       // push %rsp
  EXPECT_FALSE(of({0x5d}).moves_stack);                       // pop %rbp
  EXPECT_FALSE(of({0xe8, 0, 0, 0, 0}).moves_stack);
  EXPECT_FALSE(of({0xc3}).moves_stack);
  EXPECT_FALSE(of({0x48, 0x89, 0xe5}).moves_stack);  // mov %rsp, %rbp
}

}  // namespace
}  // namespace clew::prove
