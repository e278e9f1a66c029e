import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.hdfs.protocol.BlockChecksumOptions;
import org.apache.hadoop.hdfs.protocol.DatanodeID;
import org.apache.hadoop.hdfs.protocol.DatanodeInfo;
import org.apache.hadoop.hdfs.protocol.ExtendedBlock;
import org.apache.hadoop.hdfs.protocol.StripedBlockInfo;
import org.apache.hadoop.hdfs.protocol.datatransfer.BlockConstructionStage;
import org.apache.hadoop.hdfs.protocol.datatransfer.Op;
import org.apache.hadoop.hdfs.protocol.datatransfer.Receiver;
import org.apache.hadoop.hdfs.protocol.datatransfer.Sender;
import org.apache.hadoop.hdfs.security.token.block.BlockTokenIdentifier;
import org.apache.hadoop.hdfs.server.datanode.CachingStrategy;
import org.apache.hadoop.hdfs.shortcircuit.ShortCircuitShm.SlotId;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.util.DataChecksum;

/**
 * Requests, made by Hadoop's Sender and understood by its Receiver. Both ways
 * the fields stand in the order of Sender's arguments; lists are joined with
 * commas, "." is an absent value, texts are hex. The lists are those of the
 * message: Sender leaves out the first target, since it is the receiver.
 */
final class Ops {
  private Ops() {}

  static void register(Map<String, Judge.Command> commands) {
    commands.put("op.write", (a, r) -> {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      int i = 1;
      ExtendedBlock block = block(a, i);
      i += 4;
      StorageType type = StorageType.valueOf(a[i++]);
      Token<BlockTokenIdentifier> token = token(a, i);
      i += 4;
      String client = Judge.text(a[i++]);
      DatanodeInfo[] targets = nodes(behind("3a:3a:3a:0:0:0:0", a[i++]));
      StorageType[] targetTypes = types(behind("DISK", a[i++]));
      DatanodeInfo[] source = nodes(a[i++]);
      BlockConstructionStage stage = BlockConstructionStage.valueOf(a[i++]);
      int pipelineSize = Integer.parseInt(a[i++]);
      long min = Long.parseLong(a[i++]);
      long max = Long.parseLong(a[i++]);
      long stamp = Long.parseLong(a[i++]);
      DataChecksum sum = Judge.checksum(a[i], a[i + 1]);
      i += 2;
      CachingStrategy caching = caching(a, i);
      i += 2;
      boolean lazy = Boolean.parseBoolean(a[i++]);
      boolean pinning = Boolean.parseBoolean(a[i++]);
      boolean[] pinnings = booleans(behind("false", a[i++]));
      String storage = a[i].equals(".") ? null : Judge.text(a[i]);
      i++;
      String[] storages = texts(behind("3a", a[i]));
      new Sender(new DataOutputStream(out)).writeBlock(block, type, token, client, targets,
          targetTypes, source.length == 0 ? null : source[0], stage, pipelineSize, min, max, stamp,
          sum, caching, lazy, pinning, pinnings, storage, storages);
      r.add(Judge.hex(out.toByteArray()));
    });
    commands.put("op.read", (a, r) -> {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      new Sender(new DataOutputStream(out)).readBlock(block(a, 1), token(a, 5), Judge.text(a[9]),
          Long.parseLong(a[10]), Long.parseLong(a[11]), Boolean.parseBoolean(a[12]),
          caching(a, 13));
      r.add(Judge.hex(out.toByteArray()));
    });
    commands.put("op.checksum", (a, r) -> {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      new Sender(new DataOutputStream(out)).blockChecksum(block(a, 1), token(a, 5),
          new BlockChecksumOptions(
              org.apache.hadoop.hdfs.protocol.BlockChecksumType.valueOf(a[9]),
              Long.parseLong(a[10])));
      r.add(Judge.hex(out.toByteArray()));
    });
    commands.put("op.transfer", (a, r) -> {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      new Sender(new DataOutputStream(out)).transferBlock(block(a, 1), token(a, 5),
          Judge.text(a[9]), nodes(a[10]), types(a[11]), texts(a[12]));
      r.add(Judge.hex(out.toByteArray()));
    });
    // op.parse BYTES: the operation and its fields
    commands.put("op.parse", (a, r) -> {
      DataInputStream in = Judge.in(a[1]);
      new Reader(r).read(in);
      if (in.available() > 0) {
        throw new IOException(in.available() + " bytes left over");
      }
    });
  }

  private static ExtendedBlock block(String[] a, int i) {
    return new ExtendedBlock(Judge.text(a[i]), Long.parseLong(a[i + 1]), Long.parseLong(a[i + 3]),
        Long.parseLong(a[i + 2]));
  }

  private static Token<BlockTokenIdentifier> token(String[] a, int i) {
    return new Token<>(Judge.bytes(a[i]), Judge.bytes(a[i + 1]), new Text(Judge.bytes(a[i + 2])),
        new Text(Judge.bytes(a[i + 3])));
  }

  private static CachingStrategy caching(String[] a, int i) {
    return new CachingStrategy(a[i].equals(".") ? null : Boolean.valueOf(a[i]),
        a[i + 1].equals(".") ? null : Long.valueOf(a[i + 1]));
  }

  /** Puts the receiver itself before a list. */
  private static String behind(String self, String list) {
    return list.equals(".") ? self : self + "," + list;
  }

  private static String[] list(String s) {
    return s.equals(".") ? new String[0] : s.split(",", -1);
  }

  static String[] texts(String s) {
    String[] l = list(s);
    for (int i = 0; i < l.length; i++) {
      l[i] = Judge.text(l[i]);
    }
    return l;
  }

  private static boolean[] booleans(String s) {
    String[] l = list(s);
    boolean[] b = new boolean[l.length];
    for (int i = 0; i < b.length; i++) {
      b[i] = Boolean.parseBoolean(l[i]);
    }
    return b;
  }

  private static StorageType[] types(String s) {
    String[] l = list(s);
    StorageType[] t = new StorageType[l.length];
    for (int i = 0; i < t.length; i++) {
      t[i] = StorageType.valueOf(l[i]);
    }
    return t;
  }

  /** A node is IP:HOST:UUID:XFER:INFO:INFOSECURE:IPC, the first three hex. */
  static DatanodeInfo[] nodes(String s) {
    String[] l = list(s);
    DatanodeInfo[] n = new DatanodeInfo[l.length];
    for (int i = 0; i < n.length; i++) {
      String[] f = l[i].split(":");
      n[i] = new DatanodeInfo.DatanodeInfoBuilder().setNodeID(new DatanodeID(Judge.text(f[0]),
          Judge.text(f[1]), Judge.text(f[2]), Integer.parseInt(f[3]), Integer.parseInt(f[4]),
          Integer.parseInt(f[5]), Integer.parseInt(f[6]))).build();
    }
    return n;
  }

  static String join(List<String> l) {
    return l.isEmpty() ? "." : String.join(",", l);
  }

  static String nodes(DatanodeInfo... nodes) {
    List<String> l = new ArrayList<>();
    for (DatanodeInfo n : nodes) {
      l.add(String.join(":", Judge.hexText(n.getIpAddr()), Judge.hexText(n.getHostName()),
          n.getDatanodeUuid() == null ? "-" : Judge.hexText(n.getDatanodeUuid()), "" + n.getXferPort(), "" + n.getInfoPort(),
          "" + n.getInfoSecurePort(), "" + n.getIpcPort()));
    }
    return join(l);
  }

  /** Adds pool, id, stamp and length, and a token's four fields. */
  static void head(List<String> r, ExtendedBlock b, Token<BlockTokenIdentifier> t) {
    block(r, b);
    token(r, t);
  }

  private static void block(List<String> r, ExtendedBlock b) {
    r.addAll(List.of(Judge.hexText(b.getBlockPoolId()), "" + b.getBlockId(),
        "" + b.getGenerationStamp(), "" + b.getNumBytes()));
  }

  private static void token(List<String> r, Token<BlockTokenIdentifier> t) {
    r.addAll(List.of(Judge.hex(t.getIdentifier()), Judge.hex(t.getPassword()),
        Judge.hexText(t.getKind().toString()), Judge.hexText(t.getService().toString())));
  }

  /** Adds what the Receiver understood to the results. */
  private static final class Reader extends Receiver {
    private final List<String> r;

    Reader(List<String> r) {
      super(org.apache.hadoop.tracing.Tracer.curThreadTracer());
      this.r = r;
    }

    void read(DataInputStream stream) throws IOException {
      initialize(stream);
      Op op = readOp();
      r.add(op.name());
      processOp(op);
    }

    private void add(Object... fields) {
      for (Object f : fields) {
        r.add(f.toString());
      }
    }

    private void caching(CachingStrategy c) {
      add(c.getDropBehind() == null ? "." : c.getDropBehind());
      add(c.getReadahead() == null ? "." : c.getReadahead());
    }

    @Override
    public void readBlock(ExtendedBlock b, Token<BlockTokenIdentifier> t, String client,
        long offset, long length, boolean sendChecksum, CachingStrategy caching) {
      head(r, b, t);
      add(Judge.hexText(client), offset, length, sendChecksum);
      caching(caching);
    }

    @Override
    public void writeBlock(ExtendedBlock b, StorageType type, Token<BlockTokenIdentifier> t,
        String client, DatanodeInfo[] targets, StorageType[] targetTypes, DatanodeInfo source,
        BlockConstructionStage stage, int pipelineSize, long min, long max, long stamp,
        DataChecksum sum, CachingStrategy caching, boolean lazy, boolean pinning,
        boolean[] pinnings, String storage, String[] storages) {
      block(r, b);
      add(type);
      token(r, t);
      add(Judge.hexText(client), nodes(targets));
      List<String> l = new ArrayList<>();
      for (StorageType x : targetTypes) {
        l.add(x.name());
      }
      // the Receiver makes a node of an absent source, with nothing in it
      add(join(l), source.getIpAddr().isEmpty() ? "." : nodes(source), stage.name(), pipelineSize, min, max,
          stamp);
      add(sum == null ? "." : sum.getChecksumType().name(),
          sum == null ? "." : sum.getBytesPerChecksum());
      caching(caching);
      add(lazy, pinning);
      l.clear();
      for (boolean x : pinnings) {
        l.add(Boolean.toString(x));
      }
      add(join(l), storage == null ? "." : Judge.hexText(storage));
      l.clear();
      for (String x : storages) {
        l.add(Judge.hexText(x));
      }
      add(join(l));
    }

    @Override
    public void blockChecksum(ExtendedBlock b, Token<BlockTokenIdentifier> t,
        BlockChecksumOptions o) {
      head(r, b, t);
      add(o.getBlockChecksumType(), o.getStripeLength());
    }

    @Override
    public void transferBlock(ExtendedBlock b, Token<BlockTokenIdentifier> t, String client,
        DatanodeInfo[] targets, StorageType[] types, String[] storages) {
      head(r, b, t);
      List<String> l = new ArrayList<>();
      for (StorageType x : types) {
        l.add(x.name());
      }
      List<String> ids = new ArrayList<>();
      for (String x : storages) {
        ids.add(Judge.hexText(x));
      }
      add(Judge.hexText(client), nodes(targets), join(l), join(ids));
    }

    @Override
    public void requestShortCircuitFds(ExtendedBlock b, Token<BlockTokenIdentifier> t, SlotId s,
        int maxVersion, boolean receipt) {
      throw new UnsupportedOperationException();
    }

    @Override
    public void releaseShortCircuitFds(SlotId s) {
      throw new UnsupportedOperationException();
    }

    @Override
    public void requestShortCircuitShm(String client) {
      throw new UnsupportedOperationException();
    }

    @Override
    public void replaceBlock(ExtendedBlock b, StorageType type, Token<BlockTokenIdentifier> t,
        String delHint, DatanodeInfo source, String storage) {
      throw new UnsupportedOperationException();
    }

    @Override
    public void copyBlock(ExtendedBlock b, Token<BlockTokenIdentifier> t) {
      throw new UnsupportedOperationException();
    }

    @Override
    public void blockGroupChecksum(StripedBlockInfo s, Token<BlockTokenIdentifier> t, long bytes,
        BlockChecksumOptions o) {
      throw new UnsupportedOperationException();
    }
  }
}
