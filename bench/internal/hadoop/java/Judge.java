import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumException;
import org.apache.hadoop.fs.MD5MD5CRC32CastagnoliFileChecksum;
import org.apache.hadoop.fs.MD5MD5CRC32FileChecksum;
import org.apache.hadoop.fs.MD5MD5CRC32GzipFileChecksum;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.Packets;
import org.apache.hadoop.hdfs.protocol.datatransfer.PacketHeader;
import org.apache.hadoop.hdfs.protocol.datatransfer.PacketReceiver;
import org.apache.hadoop.hdfs.protocol.datatransfer.PipelineAck;
import org.apache.hadoop.hdfs.protocol.proto.DataTransferProtos.BlockOpResponseProto;
import org.apache.hadoop.hdfs.protocol.proto.DataTransferProtos.ChecksumProto;
import org.apache.hadoop.hdfs.protocol.proto.DataTransferProtos.ClientReadStatusProto;
import org.apache.hadoop.hdfs.protocol.proto.DataTransferProtos.PipelineAckProto;
import org.apache.hadoop.hdfs.protocol.proto.DataTransferProtos.ReadOpChecksumInfoProto;
import org.apache.hadoop.hdfs.protocol.proto.DataTransferProtos.Status;
import org.apache.hadoop.hdfs.protocol.proto.HdfsProtos.ChecksumTypeProto;
import org.apache.hadoop.hdfs.tools.DebugAdmin;
import org.apache.hadoop.io.MD5Hash;
import org.apache.hadoop.util.CrcComposer;
import org.apache.hadoop.util.CrcUtil;
import org.apache.hadoop.util.DataChecksum;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;
import org.apache.hadoop.util.VersionInfo;

/**
 * Answers questions about HDFS's formats with Hadoop's own classes, one line of
 * text per question and answer. A question is a command and its arguments,
 * separated by blanks; byte strings are in hex, "-" being the empty one. The
 * answer is "ok" and the results, or "err" and the exception.
 */
public final class Judge {
  private Judge() {}

  /** One command. */
  interface Command {
    /** Runs with the arguments and adds the results. */
    void run(String[] arg, List<String> result) throws Exception;
  }

  static final HexFormat HEX = HexFormat.of();
  private static final Map<String, Command> COMMANDS = new HashMap<>();

  public static void main(String[] args) throws IOException {
    PrintStream out = System.out;
    System.setOut(System.err); // answers only on the real standard output
    wire();
    sums();
    Ops.register(COMMANDS);
    disk();
    Cluster.register(COMMANDS);
    Client.register(COMMANDS);
    Log.register(COMMANDS);
    BufferedReader in = new BufferedReader(
        new InputStreamReader(System.in, StandardCharsets.US_ASCII), 1 << 20);
    for (String line; (line = in.readLine()) != null;) {
      String[] arg = line.split(" ");
      StringBuilder answer = new StringBuilder();
      try {
        Command c = COMMANDS.get(arg[0]);
        if (c == null) {
          throw new IllegalArgumentException("no such command: " + arg[0]);
        }
        List<String> result = new ArrayList<>();
        c.run(arg, result);
        answer.append("ok");
        for (String r : result) {
          answer.append(' ').append(r);
        }
      } catch (Throwable t) { // AssertionError too: the JVM runs with -ea for Hadoop's own asserts
        answer.setLength(0);
        answer.append("err ").append(describe(t));
      }
      out.println(answer);
      out.flush();
    }
    System.exit(0);
  }

  private static String describe(Throwable t) {
    return (t.getClass().getSimpleName() + ": " + t.getMessage()).replaceAll("\\s+", " ");
  }

  static byte[] bytes(String hex) {
    return hex.equals("-") ? new byte[0] : HEX.parseHex(hex);
  }

  static String hex(byte[] b) {
    return b.length == 0 ? "-" : HEX.formatHex(b);
  }

  static String hex(ByteBuffer b) {
    byte[] a = new byte[b.remaining()];
    b.duplicate().get(a);
    return hex(a);
  }

  static String text(String hex) {
    return new String(bytes(hex), StandardCharsets.UTF_8);
  }

  static String hexText(String s) {
    return hex(s.getBytes(StandardCharsets.UTF_8));
  }

  static DataInputStream in(String hex) {
    return new DataInputStream(new ByteArrayInputStream(bytes(hex)));
  }

  static DataChecksum checksum(String type, String bpc) {
    return DataChecksum.newDataChecksum(DataChecksum.Type.valueOf(type), Integer.parseInt(bpc));
  }

  private static void addHeader(List<String> r, PacketHeader h) {
    r.add(Integer.toString(h.getPacketLen()));
    r.add(Long.toString(h.getOffsetInBlock()));
    r.add(Long.toString(h.getSeqno()));
    r.add(Boolean.toString(h.isLastPacketInBlock()));
    r.add(Integer.toString(h.getDataLen()));
    r.add(Boolean.toString(h.getSyncBlock()));
  }

  private static void wire() {
    COMMANDS.put("version", (a, r) -> {
      r.add(VersionInfo.getVersion());
      r.add(System.getProperty("java.version"));
    });
    // header.make PLEN OFFSET SEQNO LAST DATALEN SYNC
    COMMANDS.put("header.make", (a, r) -> {
      PacketHeader h = new PacketHeader(Integer.parseInt(a[1]), Long.parseLong(a[2]),
          Long.parseLong(a[3]), Boolean.parseBoolean(a[4]), Integer.parseInt(a[5]),
          Boolean.parseBoolean(a[6]));
      byte[] b = h.getBytes();
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      h.write(new DataOutputStream(out));
      ByteBuffer buf = ByteBuffer.allocate(h.getSerializedSize());
      h.putInBuffer(buf);
      if (!hex(b).equals(hex(out.toByteArray())) || !hex(b).equals(hex(buf.array()))) {
        throw new IllegalStateException("PacketHeader disagrees with itself");
      }
      r.add(hex(b));
    });
    // header.parse BYTES: PLEN, HLEN and the proto
    COMMANDS.put("header.parse", (a, r) -> {
      PacketHeader h = new PacketHeader();
      h.readFields(in(a[1]));
      PacketHeader same = new PacketHeader();
      same.readFields(ByteBuffer.wrap(bytes(a[1])));
      if (!h.equals(same)) {
        throw new IllegalStateException("PacketHeader disagrees with itself");
      }
      addHeader(r, h);
    });
    // header.proto PLEN PROTO: the proto alone
    COMMANDS.put("header.proto", (a, r) -> {
      PacketHeader h = new PacketHeader();
      h.setFieldsFromData(Integer.parseInt(a[1]), bytes(a[2]));
      addHeader(r, h);
    });
    // packets.parse STREAM: for each packet its header, sums and data; then how the stream ended.
    COMMANDS.put("packets.parse", (a, r) -> packets(bytes(a[1]), r));
    // packets.make TYPE BPC MAXCHUNKS (OFFSET SEQNO LAST SYNC DATA)...
    COMMANDS.put("packets.make", (a, r) -> {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      DataOutputStream d = new DataOutputStream(out);
      DataChecksum sum = checksum(a[1], a[2]);
      for (int i = 4; i < a.length; i += 5) {
        Packets.write(d, sum, Integer.parseInt(a[3]), Long.parseLong(a[i]),
            Long.parseLong(a[i + 1]), Boolean.parseBoolean(a[i + 2]),
            Boolean.parseBoolean(a[i + 3]), bytes(a[i + 4]));
      }
      r.add(hex(out.toByteArray()));
    });
    // ack.make SEQNO NANOS FLAG,...
    COMMANDS.put("ack.make", (a, r) -> {
      String[] flags = a[3].split(",");
      int[] header = new int[flags.length];
      for (int i = 0; i < header.length; i++) {
        header[i] = Integer.parseInt(flags[i]);
      }
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      new PipelineAck(Long.parseLong(a[1]), header, Long.parseLong(a[2])).write(out);
      r.add(hex(out.toByteArray()));
    });
    // ack.raw SEQNO NANOS|- REPLY,...|- FLAG,...|-: what other versions send
    COMMANDS.put("ack.raw", (a, r) -> {
      PipelineAckProto.Builder b = PipelineAckProto.newBuilder().setSeqno(Long.parseLong(a[1]));
      if (!a[2].equals("-")) {
        b.setDownstreamAckTimeNanos(Long.parseLong(a[2]));
      }
      if (!a[3].equals("-")) {
        for (String s : a[3].split(",")) {
          b.addReply(Status.forNumber(Integer.parseInt(s)));
        }
      }
      if (!a[4].equals("-")) {
        for (String s : a[4].split(",")) {
          b.addFlag(Integer.parseInt(s));
        }
      }
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      b.build().writeDelimitedTo(out);
      r.add(hex(out.toByteArray()));
    });
    // ack.parse BYTES: seqno, nanos, success, OOB status, then status:flag of each node
    COMMANDS.put("ack.parse", (a, r) -> {
      PipelineAck p = new PipelineAck();
      DataInputStream in = in(a[1]);
      p.readFields(in);
      if (in.available() > 0) {
        throw new IOException(in.available() + " bytes left over");
      }
      r.add(Long.toString(p.getSeqno()));
      r.add(Long.toUnsignedString(p.getDownstreamAckTimeNanos()));
      r.add(Boolean.toString(p.isSuccess()));
      r.add(p.getOOBStatus() == null ? "-" : p.getOOBStatus().name());
      for (int i = 0; i < p.getNumOfReplies(); i++) {
        r.add(PipelineAck.getStatusFromHeader(p.getHeaderFlag(i)).getNumber() + ":"
            + Integer.toUnsignedString(p.getHeaderFlag(i)));
      }
    });
    // response.make STATUS BADLINK|. TYPE|. BPC CHUNKOFFSET MESSAGE|.   ("." leaves a field out)
    COMMANDS.put("response.make", (a, r) -> {
      BlockOpResponseProto.Builder b = BlockOpResponseProto.newBuilder()
          .setStatus(Status.forNumber(Integer.parseInt(a[1])));
      if (!a[2].equals(".")) {
        b.setFirstBadLink(text(a[2]));
      }
      if (!a[3].equals(".")) {
        b.setReadOpChecksumInfo(ReadOpChecksumInfoProto.newBuilder()
            .setChecksum(ChecksumProto.newBuilder()
                .setType(ChecksumTypeProto.valueOf("CHECKSUM_" + a[3]))
                .setBytesPerChecksum(Integer.parseInt(a[4])))
            .setChunkOffset(Long.parseLong(a[5])));
      }
      if (!a[6].equals(".")) {
        b.setMessage(text(a[6]));
      }
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      b.build().writeDelimitedTo(out);
      r.add(hex(out.toByteArray()));
    });
    COMMANDS.put("response.parse", (a, r) -> {
      BlockOpResponseProto p = BlockOpResponseProto.parseDelimitedFrom(in(a[1]));
      r.add(Integer.toString(p.getStatus().getNumber()));
      r.add(p.hasFirstBadLink() ? hexText(p.getFirstBadLink()) : ".");
      if (p.hasReadOpChecksumInfo()) {
        ReadOpChecksumInfoProto i = p.getReadOpChecksumInfo();
        r.add(i.getChecksum().getType().name().replace("CHECKSUM_", ""));
        r.add(Integer.toString(i.getChecksum().getBytesPerChecksum()));
        r.add(Long.toString(i.getChunkOffset()));
      } else {
        r.addAll(List.of(".", "0", "0"));
      }
      r.add(p.hasMessage() ? hexText(p.getMessage()) : ".");
    });
    COMMANDS.put("readstatus.make", (a, r) -> {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      ClientReadStatusProto.newBuilder().setStatus(Status.forNumber(Integer.parseInt(a[1])))
          .build().writeDelimitedTo(out);
      r.add(hex(out.toByteArray()));
    });
    COMMANDS.put("readstatus.parse", (a, r) -> r.add(Integer.toString(
        ClientReadStatusProto.parseDelimitedFrom(in(a[1])).getStatus().getNumber())));
  }

  private static void packets(byte[] stream, List<String> r) throws IOException {
    ByteArrayInputStream in = new ByteArrayInputStream(stream);
    ByteArrayOutputStream mirror = new ByteArrayOutputStream();
    DataOutputStream mirrorOut = new DataOutputStream(mirror);
    try (PacketReceiver receiver = new PacketReceiver(false)) {
      while (in.available() > 0) {
        int before = mirror.size();
        try {
          receiver.receiveNextPacket(in);
        } catch (Throwable t) {
          r.add("error");
          r.add(hexText(describe(t)));
          return;
        }
        addHeader(r, receiver.getHeader());
        r.add(hex(receiver.getChecksumSlice()));
        r.add(hex(receiver.getDataSlice()));
        receiver.mirrorPacketTo(mirrorOut);
        int end = stream.length - in.available();
        if (mirror.size() != end || !Arrays.equals(mirror.toByteArray(), before, end,
            stream, before, end)) {
          throw new IllegalStateException("the mirrored packet is not the one received");
        }
      }
    }
    r.add("end");
  }

  private static void sums() {
    // checksum.header TYPE BPC
    COMMANDS.put("checksum.header", (a, r) -> r.add(hex(checksum(a[1], a[2]).getHeader())));
    COMMANDS.put("checksum.parse", (a, r) -> {
      DataChecksum c = DataChecksum.newDataChecksum(in(a[1]));
      r.add(c.getChecksumType().name());
      r.add(Integer.toString(c.getBytesPerChecksum()));
    });
    // sums.make TYPE BPC DATA, over arrays and over buffers
    COMMANDS.put("sums.make", (a, r) -> {
      DataChecksum c = checksum(a[1], a[2]);
      byte[] data = bytes(a[3]);
      byte[] sums = new byte[data.length == 0 ? 0 : c.getChecksumSize(data.length)];
      c.calculateChunkedSums(data, 0, data.length, sums, 0);
      ByteBuffer d = ByteBuffer.allocateDirect(data.length).put(data);
      d.flip();
      ByteBuffer s = ByteBuffer.allocateDirect(sums.length);
      c.calculateChunkedSums(d, s);
      if (!hex(s).equals(hex(sums))) {
        throw new IllegalStateException("DataChecksum disagrees with itself");
      }
      r.add(hex(sums));
    });
    // sums.verify TYPE BPC DATA SUMS BASE: "good", or "bad" and the position
    COMMANDS.put("sums.verify", (a, r) -> {
      try {
        checksum(a[1], a[2]).verifyChunkedSums(ByteBuffer.wrap(bytes(a[3])),
            ByteBuffer.wrap(bytes(a[4])), "data", Long.parseLong(a[5]));
        r.add("good");
      } catch (ChecksumException e) {
        r.add("bad");
        r.add(Long.toString(e.getPos()));
      }
    });
    // crc.compose TYPE A B LENB
    COMMANDS.put("crc.compose", (a, r) -> r.add(Integer.toHexString(CrcUtil.compose(
        Integer.parseUnsignedInt(a[2], 16), Integer.parseUnsignedInt(a[3], 16),
        Long.parseLong(a[4]),
        DataChecksum.getCrcPolynomialForType(DataChecksum.Type.valueOf(a[1]))))));
    // crc.monomial TYPE LEN
    COMMANDS.put("crc.monomial", (a, r) -> r.add(Integer.toHexString(CrcUtil.getMonomial(
        Long.parseLong(a[2]),
        DataChecksum.getCrcPolynomialForType(DataChecksum.Type.valueOf(a[1]))))));
    // composer TYPE HINT STRIPE|0 SUMS BPC LAST: all sums cover BPC bytes, the last one LAST
    COMMANDS.put("composer", (a, r) -> {
      DataChecksum.Type type = DataChecksum.Type.valueOf(a[1]);
      long hint = Long.parseLong(a[2]);
      long stripe = Long.parseLong(a[3]);
      byte[] sums = bytes(a[4]);
      CrcComposer c = stripe == 0 ? CrcComposer.newCrcComposer(type, hint)
          : CrcComposer.newStripedCrcComposer(type, hint, stripe);
      if (sums.length > 0) {
        c.update(sums, 0, sums.length - 4, Long.parseLong(a[5]));
        c.update(sums, sums.length - 4, 4, Long.parseLong(a[6]));
      }
      r.add(hex(c.digest()));
    });
    // filechecksum TYPE BPC CRCPERBLOCK MD5: bytes, algorithm name and text
    COMMANDS.put("filechecksum", (a, r) -> {
      int bpc = Integer.parseInt(a[2]);
      long crcPerBlock = Long.parseLong(a[3]);
      MD5Hash md5 = new MD5Hash(bytes(a[4]));
      MD5MD5CRC32FileChecksum c = a[1].equals("CRC32")
          ? new MD5MD5CRC32GzipFileChecksum(bpc, crcPerBlock, md5)
          : new MD5MD5CRC32CastagnoliFileChecksum(bpc, crcPerBlock, md5);
      r.add(hex(c.getBytes()));
      r.add(c.getAlgorithmName());
      r.add(c.toString());
    });
  }

  /** Read by every Configuration if the class loader of the thread has it. */
  private static final String SITE = "judge-site.xml";

  private static void disk() {
    HdfsConfiguration.init(); // so that its defaults come before
    Configuration.addDefaultResource(SITE);
    // debug ARG...: DebugAdmin with the arguments (hex text); the exit code and what it printed
    COMMANDS.put("debug", (a, r) -> tool(new DebugAdmin(new Configuration(false)),
        Arrays.copyOfRange(a, 1, a.length), r));
    // debug.compute TYPE BPC BLOCK META
    COMMANDS.put("debug.compute", (a, r) -> {
      // computeMeta asks a Configuration of its own, so the values must stand in a file that it finds
      Path site = Files.createTempDirectory("judge");
      Files.writeString(site.resolve(SITE), "<configuration>"
          + "<property><name>dfs.checksum.type</name><value>" + a[1] + "</value></property>"
          + "<property><name>dfs.bytes-per-checksum</name><value>" + a[2] + "</value></property>"
          + "</configuration>");
      Thread me = Thread.currentThread();
      ClassLoader before = me.getContextClassLoader();
      try (URLClassLoader with = new URLClassLoader(new URL[] {site.toUri().toURL()}, before)) {
        me.setContextClassLoader(with);
        tool(new DebugAdmin(new Configuration(false)), new String[] {hexText("computeMeta"),
            hexText("-block"), a[3], hexText("-out"), a[4]}, r);
      } finally {
        me.setContextClassLoader(before);
        Files.delete(site.resolve(SITE));
        Files.delete(site);
      }
    });
  }

  /** Runs a tool; the results are its exit code and what it printed. */
  static void tool(Tool tool, String[] hexArgs, List<String> r) throws Exception {
    String[] args = new String[hexArgs.length];
    for (int i = 0; i < args.length; i++) {
      args[i] = text(hexArgs[i]);
    }
    PrintStream out = System.out;
    PrintStream err = System.err;
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    PrintStream to = new PrintStream(said, true, StandardCharsets.UTF_8);
    System.setOut(to);
    System.setErr(to);
    try {
      r.add(Integer.toString(ToolRunner.run(tool, args)));
    } finally {
      System.setOut(out);
      System.setErr(err);
    }
    r.add(hex(said.toByteArray()));
  }
}
